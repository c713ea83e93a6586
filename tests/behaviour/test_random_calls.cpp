// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "conformance.hpp"
#include "reference/attention.hpp"
#include "support/sanitized.hpp"

// Calls in random order, on caches of random shapes. However a cache runs its tasks, wherever its
// memory comes from, by whatever verbs it is fed: it holds and gives the same bits; attention is
// what its entries say; and what is refused changes nothing.

namespace {

using namespace conformance;

CacheConfig random_config(support::Random& random, const PolicyCase& policy) {
  CacheConfig config;
  config.num_sequences = random.integer(1, 3);
  config.num_kv_heads = random.integer(1, 3);
  config.num_q_heads = config.num_kv_heads * random.integer(1, 5);
  config.head_dim = random.pick(std::vector<Index>{1, 3, 8, 10, 16, 17, 33, 64, 80, 128});
  config.page_size = random.pick(std::vector<Index>{16, 32, 64, 128});
  config.group_reduce = static_cast<tersekv::GroupReduce>(random.integer(0, 2));
  if (random.chance(0.3)) config.scale = random.uniform(0.01f, 1.0f);
  const Index most = random.chance(0.2) ? 1200 : 100;  // heads that workers share, or none
  std::vector<Index> budgets;
  for (Index h = 0; h < config.num_kv_heads; ++h) {
    budgets.push_back(random.integer(policy.budget, most));
  }
  if (random.chance(0.5)) budgets.resize(1);
  config.budget = tersekv::Budget(std::span<const Index>(budgets));
  return config;
}

Tokens random_tokens(support::Random& random, const CacheConfig& config) {
  const Index sizes[] = {
      1, 1, 1, 1, 1, random.integer(1, 5), random.integer(2, 40), random.integer(30, 300)};
  Tokens tokens(random, config, sizes[random.integer(0, 7)]);
  // Some as others before them, so that scores and similarities are equal.
  const double chance = random.chance(0.7) ? 0 : (random.chance(0.2) ? 1 : 0.2);
  const auto copy = [&](std::vector<float>& x, Index from, Index to) {
    const Index each = std::ssize(x) / tokens.count;
    std::copy_n(x.begin() + from * each, each, x.begin() + to * each);
  };
  for (Index t = 1; t < tokens.count; ++t) {
    if (!random.chance(chance)) continue;
    const Index from = random.integer(0, t - 1);
    copy(tokens.k, from, t);
    if (random.chance(0.5)) copy(tokens.v, from, t);
    if (random.chance(0.5)) copy(tokens.scores, from, t);
  }
  return tokens;
}

/// A cache, and how it is fed.
struct Contestant {
  std::unique_ptr<AnyCache> cache;
  enum { extend, verbs, verbs_and_rows } by = extend;

  void feed(const std::vector<Chunk<float>>& chunks, Index compress_every, Tokens& wrong) {
    if (by == extend || compress_every != 0) {
      return cache->extend(chunks, {.compress_every = compress_every});
    }
    for (const Chunk<float>& chunk : chunks) {
      cache->append(chunk.sequence, chunk);
      cache->append(chunk.sequence, wrong.all(chunk.sequence));
      cache->rewind(chunk.sequence, wrong.count);
      attend_and_compress(*cache, chunk, by == verbs_and_rows);
    }
  }
};

/// Positions, weights and counts tell of the same tokens.
Verdict is_sound(const AnyCache& cache, const PolicyCase& policy, Index sequence) {
  const Index seen = cache.tokens_seen(sequence);
  for (Index h = 0; h < cache.config().num_kv_heads; ++h) {
    const std::vector<Entry> entries = cache.entries(sequence, h);
    double weights = 0;
    Index last = -1;
    for (const Entry& entry : entries) {
      if (entry.position <= last || entry.position >= seen) return rejected("wrong positions");
      last = entry.position;
      weights += static_cast<double>(entry.weight);
      bool finite = support::is_finite(static_cast<double>(entry.score));
      for (const auto* numbers : {&entry.key, &entry.value}) {
        for (const float x : *numbers)
          finite = finite && support::is_finite(static_cast<double>(x));
      }
      if (!finite) return rejected("a number that is none");
    }
    if (policy.weights_sum_to_tokens) {
      Verdict sum = support::close(weights, static_cast<double>(seen), 1e-4, 0);
      if (!sum) return sum;
    }
    const tersekv::Counts counts = cache.counts(sequence, h);
    if (counts.evictions + counts.merges + std::ssize(entries) != seen) {
      return rejected("entries and counts are not all tokens");
    }
  }
  return {};
}

/// The attention of one more query is that of the entries. Queries against bytes are rounded to 16
/// bits (`slack`, in which a float's rounding is 1).
Verdict attends_to_entries(AnyCache& cache, const PolicyCase& policy, Index sequence,
                           support::Random& random, double slack) {
  struct Exact {
    reference::Vector key, value;
    double weight;
  };
  const CacheConfig& config = cache.config();
  if (cache.tokens_seen(sequence) == 0) return {};
  Tokens token(random, config, 1);
  RowsOfAttention rows(cache, sequence, 1);
  const Chunk<float> chunk = token.all(sequence);
  cache.attend(sequence, chunk.q, chunk.out, {.lse = chunk.lse, .rows = rows.view()});
  const Index group = config.num_q_heads / config.num_kv_heads, dim = config.head_dim;
  const double scale = config.scale != 0 ? static_cast<double>(config.scale)
                                         : 1 / std::sqrt(static_cast<double>(dim));
  for (Index h = 0; h < config.num_kv_heads; ++h) {
    std::vector<Exact> entries;
    for (const Entry& e : cache.entries(sequence, h)) {
      entries.push_back(
          {{e.key.begin(), e.key.end()}, {e.value.begin(), e.value.end()}, double{e.weight}});
    }
    std::vector<reference::Attention> want;
    for (Index head = h * group; head < (h + 1) * group; ++head) {
      const auto q = token.q.begin() + head * dim, out = token.out.begin() + head * dim;
      want.push_back(reference::attend({q, q + dim}, entries, entries.size(),
                                       static_cast<double>(policy.alpha), scale));
      Verdict same = support::close_all(std::vector<float>(out, out + dim), want.back().output,
                                        2e-4 * slack, 2e-4 * slack);
      if (!same) return same;
      same = support::close(static_cast<double>(token.lse[static_cast<std::size_t>(head)]),
                            want.back().lse, 1e-5 * slack, 1e-4 * slack);
      if (!same) return same;
    }
    // The rows lie as the entries are stored, and beyond them nothing is written.
    reference::Vector shares =
        reference::reduce_group(want, static_cast<reference::GroupReduce>(config.group_reduce));
    shares.resize(static_cast<std::size_t>(rows.longest), -1);
    std::vector<float> row = rows.of_head(h);
    std::sort(shares.begin(), shares.end());
    std::sort(row.begin(), row.end());
    Verdict same = support::close_all(row, shares, 1e-3 * slack, 1e-6 * slack);
    if (!same) return same;
  }
  return {};
}

/// Tokens of which one number is none, or too large.
void refuse_bad_tokens(std::vector<Contestant>& all, Index sequence, support::Random& random) {
  Tokens bad(random, all[0].cache->config(), random.integer(1, 20));
  auto& numbers = random.chance(0.5) ? bad.k : bad.v;
  const auto which = static_cast<std::size_t>(random.integer(0, std::ssize(numbers) - 1));
  numbers[which] = random.chance(0.5) ? std::numeric_limits<float>::quiet_NaN() : 1e16f;
  for (Contestant& each : all) {
    REQUIRE_THROWS_AS(extend(*each.cache, bad.all(sequence)), std::invalid_argument);
  }
}

void feed_some(std::vector<Contestant>& all, Storage storage, Index sequence,
               support::Random& random) {
  const CacheConfig& config = all[0].cache->config();
  std::vector<Index> named;
  std::vector<Tokens> tokens;
  for (Index s = 0; s < config.num_sequences; ++s) {
    if (s != sequence && random.chance(0.6)) continue;
    named.push_back(s);
    tokens.push_back(random_tokens(random, config));
  }
  const Index often[] = {0, 0, 0, 0, 1, random.integer(1, 64), tersekv::kNever};
  const Index every = often[random.integer(0, 6)];
  std::vector<Tokens> first;
  for (Contestant& each : all) {
    std::vector<Tokens> own = tokens;
    std::vector<Chunk<float>> chunks;
    for (std::size_t i = 0; i < own.size(); ++i) chunks.push_back(own[i].all(named[i]));
    Tokens wrong(random, config, random.integer(1, 40));
    each.feed(chunks, every, wrong);
    if (first.empty()) {
      first = std::move(own);
      continue;
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      // Tile registers round what has 16 bits otherwise: chunks, not tokens of few query heads.
      const bool alike = each.by == all[0].by || storage != Storage::half_and_bfloat ||
                         !tersekv::simd::Tiles::granted();
      if (alike) {
        REQUIRE(same_outputs(own[i], first[i]));
      } else {
        REQUIRE(support::close_all(own[i].out, first[i].out, 1e-4, 1e-4));
        REQUIRE(support::close_all(own[i].lse, first[i].lse, 1e-5, 1e-5));
      }
    }
  }
}

void play(const PolicyCase& policy, std::uint64_t seed, int calls) {
  support::Random random(seed);
  CAPTURE(seed);
  const CacheConfig config = random_config(random, policy);
  const Storage storage = kStorages[random.integer(0, 2)];
  const auto made = [&](Runs runs, tersekv::PagePool* pool) {
    return policy.make(config, {.storage = storage, .runs = runs, .pool = pool});
  };
  tersekv::PagePool pool, other_pool;
  std::vector<Contestant> all;
  all.push_back({made(Runs::serially, nullptr)});
  all.push_back({made(Runs::openmp, &pool), Contestant::extend});
  all.push_back({made(Runs::shuffled, &pool), Contestant::verbs});
  if (policy.takes_rows) all.push_back({made(Runs::serially, &pool), Contestant::verbs_and_rows});
  for (int call = 0; call < calls; ++call) {
    CAPTURE(call);
    const Index sequence = random.integer(0, config.num_sequences - 1);
    Contestant& any = all[static_cast<std::size_t>(random.integer(0, std::ssize(all) - 1))];
    switch (random.integer(0, 20)) {
      case 0:
        for (Contestant& each : all) each.cache->clear(sequence);
        break;
      case 1:
        any.cache->trim();
        break;
      case 2:
        any.cache = random.chance(0.5) ? any.cache->clone() : any.cache->clone(other_pool);
        break;
      case 3:
        for (Contestant& each : all) each.cache->compress(sequence);
        break;
      case 4:
        refuse_bad_tokens(all, sequence, random);
        break;
      case 5:
        REQUIRE(attends_to_entries(*any.cache, policy, sequence, random,
                                   storage == Storage::int8 ? 20 : 1));
        break;
      case 6: {
        const Index to = random.integer(0, config.num_sequences - 1);
        for (Contestant& each : all) each.cache->copy(sequence, to);
        break;
      }
      default:
        feed_some(all, storage, sequence, random);
    }
    if (call % 4 != 3) continue;
    for (Index s = 0; s < config.num_sequences; ++s) {
      REQUIRE(is_sound(*all[0].cache, policy, s));
      for (Contestant& each : all) REQUIRE(same_state(*each.cache, *all[0].cache, s));
    }
  }
}

TEST_CASE("conformance: calls in any order give the same bits, however they run") {
  FOR_EACH_POLICY(policy) {
    std::uint64_t seed = 0;  // shapes and storages of its own for every policy
    for (const char c : policy.name) seed = 31 * seed + static_cast<unsigned char>(c);
    for (int i = 0; i < (support::kAddressSanitizer ? 1 : 3); ++i) play(policy, seed++, 40);
  }
}

}  // namespace
