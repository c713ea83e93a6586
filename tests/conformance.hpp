// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <tersekv/chunk.hpp>
#include <tersekv/page_pool.hpp>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"

// The conformance suite, written once for every policy. The properties
// (behaviour/test_conformance_*.cpp) speak to a cache through `AnyCache` and to a policy through
// `PolicyCase`; a policy joins with a `Join` (conformance_join.hpp).

namespace conformance {

using support::rejected;
using support::Verdict;
using tersekv::CacheConfig;
using tersekv::Chunk;
using tersekv::Entry;
using tersekv::Index;

/// A KVCache of whatever policy, storage and executor.
class AnyCache {
 public:
  virtual ~AnyCache() = default;
  virtual void extend(std::span<const Chunk<float>>, tersekv::ExtendOptions = {}) = 0;
  virtual void append(Index sequence, const Chunk<float>& tokens) = 0;  // its k, v, token_scores
  virtual void rewind(Index sequence, Index tokens) = 0;
  virtual void copy(Index from, Index to) = 0;
  virtual void attend(Index sequence, tersekv::TokenView<const float> q,
                      tersekv::TokenView<float> out, tersekv::AttendOutputs outputs) = 0;
  /// Throws std::logic_error where the policy observes logits.
  virtual void observe(Index sequence, const tersekv::AttentionRows<const float>& rows) = 0;
  virtual void observe(Index sequence, tersekv::TokenView<const float> last_queries) = 0;
  virtual void compress(Index sequence) = 0;
  virtual void clear(Index sequence) = 0;
  virtual void clear() = 0;
  virtual void trim() = 0;
  virtual Index length(Index sequence, Index kv_head) const = 0;
  virtual Index tokens_seen(Index sequence) const = 0;
  virtual tersekv::Counts counts(Index sequence, Index kv_head) const = 0;
  virtual tersekv::Counts total_counts() const = 0;
  virtual double keep_ratio() const = 0;
  virtual std::vector<Entry> entries(Index sequence, Index kv_head) const = 0;
  virtual tersekv::MemoryUsage memory() const = 0;
  virtual const CacheConfig& config() const = 0;
  virtual tersekv::PagePool& pool() = 0;
  virtual std::unique_ptr<AnyCache> clone() const = 0;
  virtual std::unique_ptr<AnyCache> clone(tersekv::PagePool& pool) const = 0;
  Index bytes() const { return memory().total(); }
};

/// How keys and values are stored.
enum class Storage { floats, half_and_bfloat, int8 };
inline constexpr Storage kStorages[] = {Storage::floats, Storage::half_and_bfloat, Storage::int8};
/// `shuffled` runs the tasks in random order under random worker numbers.
enum class Runs { serially, openmp, shuffled };

struct Setup {
  Storage storage = Storage::floats;
  Runs runs = Runs::serially;
  tersekv::PagePool* pool = nullptr;  ///< shared, or null
  std::pmr::memory_resource* resource = std::pmr::get_default_resource();
};

/// What a policy promises of an entry's content.
enum class Intact { nothing, key, entry };

/// What the suite must know of a policy; `Join` fills in the second part.
struct PolicyCase {
  std::string name;
  Index budget = 24, other_budget = 17;
  bool has_budget = true;             ///< false: nothing bounds the length
  bool grows_while_decoding = false;  ///< single tokens are never followed by a compression
  Index beyond = 0;                   ///< entries a head may hold beyond its budget
  bool weights_sum_to_tokens = false;
  bool observes_every_row = false;  ///< false: at most the last 32 of a chunk
  /// What is left as it came, of the token at `position`, when `seen` have been appended.
  std::function<Intact(Index position, Index seen, Index budget)> intact = [](Index, Index, Index) {
    return Intact::nothing;
  };

  std::function<std::unique_ptr<AnyCache>(const CacheConfig&, const Setup&)> make = nullptr;
  bool needs_scores = false, takes_rows = true;
  float alpha = 0;

  /// Whether no head outgrows its budget, however long it decodes.
  bool is_bounded() const { return has_budget && !grows_while_decoding; }

  friend std::ostream& operator<<(std::ostream& out, const PolicyCase& c) { return out << c.name; }
};

inline std::vector<PolicyCase>& policies() {
  static std::vector<PolicyCase> all;
  return all;
}

/// Three query heads per KV head, a head_dim that fills no whole vector, small pages.
inline CacheConfig small_config(const PolicyCase& policy, Index sequences = 1) {
  return {.num_sequences = sequences,
          .num_q_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 10,
          .budget = policy.budget,
          .page_size = 16};
}

/// Random tokens of one sequence, contiguous, with a place for what comes out.
struct Tokens {
  Tokens(support::Random& random, const CacheConfig& config, Index tokens)
      : count(tokens),
        q_heads(config.num_q_heads),
        kv_heads(config.num_kv_heads),
        dim(config.head_dim),
        q(random.normals(tokens * q_heads * dim, 2)),
        k(random.normals(tokens * kv_heads * dim)),
        v(random.normals(tokens * kv_heads * dim)),
        scores(random.uniforms(tokens * kv_heads, -8, 0)),
        out(q.size()),
        lse(static_cast<std::size_t>(tokens * q_heads)) {}

  /// Tokens [first, first + n) as a chunk.
  Chunk<float> chunk(Index first, Index n, Index sequence = 0) {
    return {.sequence = sequence,
            .q = tersekv::nhd_view<const float>(q.data(), count, q_heads, dim).rows(first, n),
            .k = tersekv::nhd_view<const float>(k.data(), count, kv_heads, dim).rows(first, n),
            .v = tersekv::nhd_view<const float>(v.data(), count, kv_heads, dim).rows(first, n),
            .out = tersekv::nhd_view(out.data(), count, q_heads, dim).rows(first, n),
            .token_scores = {scores.data() + first * kv_heads, kv_heads},
            .lse = lse.data() + first * q_heads};
  }
  Chunk<float> all(Index sequence = 0) { return chunk(0, count, sequence); }

  Index count, q_heads, kv_heads, dim;
  std::vector<float> q, k, v, scores, out, lse;
};

inline void extend(AnyCache& cache, const Chunk<float>& chunk, Index compress_every = 0) {
  cache.extend({&chunk, 1}, {.compress_every = compress_every});
}

/// Rows of attention of one sequence, with room for its longest head and -1 where none is written.
struct RowsOfAttention {
  RowsOfAttention(const AnyCache& cache, Index sequence, Index count)
      : heads(cache.config().num_kv_heads), rows(count) {
    for (Index h = 0; h < heads; ++h) longest = std::max(longest, cache.length(sequence, h));
    data.assign(static_cast<std::size_t>(rows * heads * longest), -1.0f);
  }
  tersekv::AttentionRows<float> view() { return {data.data(), rows, heads * longest, longest}; }
  tersekv::AttentionRows<const float> given() const {
    return {data.data(), rows, heads * longest, longest};
  }
  std::vector<float> of_head(Index h) const {  // of the first row
    const auto from = data.begin() + h * longest;
    return {from, from + longest};
  }

  Index heads, rows, longest = 0;
  std::vector<float> data;
};

/// What an engine with its own loop does after an append: attend, observe, compress. With `rows`
/// the policy is shown the attention that `attend` handed out, else the queries.
inline void attend_and_compress(AnyCache& cache, const Chunk<float>& chunk, bool rows) {
  RowsOfAttention out(cache, chunk.sequence, chunk.k.tokens);
  cache.attend(chunk.sequence, chunk.q, chunk.out,
               {.lse = chunk.lse, .rows = rows ? out.view() : tersekv::AttentionRows<float>{}});
  if (rows) {
    cache.observe(chunk.sequence, out.given());
  } else {
    cache.observe(chunk.sequence, chunk.q);
  }
  cache.compress(chunk.sequence);
}

/// A conversation: a prompt beyond every budget here, single tokens, chunks of other sizes.
inline const std::vector<Index> kTalk = {40, 1, 1, 1, 1, 1, 1, 1, 9, 1, 1, 2, 30, 1, 1, 1, 5, 1, 1};

/// Feeds chunks of the given sizes from the first token on, calling `after(tokens, size)`.
template <class After>
void feed(AnyCache& cache, Tokens& tokens, const std::vector<Index>& sizes, Index sequence,
          After&& after) {
  Index first = 0;
  for (const Index size : sizes) {
    extend(cache, tokens.chunk(first, size, sequence));
    first += size;
    after(first, size);
  }
}
inline void feed(AnyCache& cache, Tokens& tokens, const std::vector<Index>& sizes = kTalk,
                 Index sequence = 0) {
  feed(cache, tokens, sizes, sequence, [](Index, Index) {});
}
inline Index total(const std::vector<Index>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Index{0});
}

/// The same bits, -0 and NaN included.
inline Verdict same_bits(const char* what, std::span<const float> got,
                         std::span<const float> want) {
  std::ostringstream reason;
  if (got.size() != want.size()) {
    reason << what << ": got " << got.size() << " numbers, want " << want.size();
    return rejected(reason.str());
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
    reason.precision(9);
    reason << what << ": number " << i << " is " << got[i] << ", want " << want[i];
    return rejected(reason.str());
  }
  return {};
}
inline Verdict same_bits(float got, float want, const char* what) {
  return same_bits(what, {&got, 1}, {&want, 1});
}

/// What a cache holds for one sequence, copied out.
struct State {
  std::vector<std::vector<Entry>> heads;
  std::vector<Index> numbers;  ///< tokens seen; per head: length, evictions, merges

  State(const AnyCache& cache, Index sequence) : numbers{cache.tokens_seen(sequence)} {
    for (Index h = 0; h < cache.config().num_kv_heads; ++h) {
      heads.push_back(cache.entries(sequence, h));
      const tersekv::Counts counts = cache.counts(sequence, h);
      numbers.insert(numbers.end(), {cache.length(sequence, h), counts.evictions, counts.merges});
    }
  }
};

inline Verdict same_state(const State& got, const State& want) {
  if (Verdict v = support::same_indices(got.numbers, want.numbers); !v) return v;
  for (std::size_t h = 0; h < want.heads.size(); ++h) {
    if (got.heads[h].size() != want.heads[h].size()) return rejected("other number of entries");
    for (std::size_t i = 0; i < want.heads[h].size(); ++i) {
      const Entry &a = got.heads[h][i], &b = want.heads[h][i];
      Verdict v;
      if (a.position != b.position) v = rejected("other position");
      if (v) v = same_bits(a.weight, b.weight, "weight");
      if (v) v = same_bits(a.score, b.score, "score");
      if (v) v = same_bits("key", a.key, b.key);
      if (v) v = same_bits("value", a.value, b.value);
      if (!v) {
        return rejected("head " + std::to_string(h) + ", entry " + std::to_string(i) + ": " +
                        v.reason);
      }
    }
  }
  return {};
}
inline Verdict same_state(const AnyCache& got, const AnyCache& want, Index sequence = 0) {
  return same_state(State(got, sequence), State(want, sequence));
}

/// The same outputs and the same state.
inline Verdict same_outputs(const Tokens& got, const Tokens& want) {
  if (Verdict v = same_bits("out", got.out, want.out); !v) return v;
  return same_bits("lse", got.lse, want.lse);
}

/// Pages of a pool that caches have.
inline Index lent_pages(const tersekv::PagePool& pool) { return pool.pages() - pool.idle_pages(); }

inline Verdict same_bytes(const tersekv::MemoryUsage& got, const tersekv::MemoryUsage& want) {
  return support::same_indices(
      std::vector<Index>{got.keys, got.values, got.weights, got.positions, got.statistics,
                         got.slack, got.bookkeeping, got.workspace},
      std::vector<Index>{want.keys, want.values, want.weights, want.positions, want.statistics,
                         want.slack, want.bookkeeping, want.workspace});
}

}  // namespace conformance

/// Runs the body once for every policy, each in a section of its own.
#define FOR_EACH_POLICY(policy)                  \
  REQUIRE(conformance::policies().size() >= 10); \
  for (const auto& policy : conformance::policies()) DYNAMIC_SECTION(policy.name)
