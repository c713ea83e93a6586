// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <numeric>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "plain_threads.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"

// Heads that do not go round among the workers are shared by several of them: the same bits as one
// worker alone, from every verb.

using namespace tersekv;
using support::Random;
using support::Threads;

namespace {

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool same(const std::vector<Entry>& a, const std::vector<Entry>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Entry& x, const Entry& y) {
    return x.position == y.position && x.weight == y.weight && x.score == y.score &&
           same(x.key, y.key) && same(x.value, y.value);
  });
}

/// Such as tile registers work on, where there are some.
constexpr Index kHeads = 3, kGroup = 7, kDim = 64, kQueryHeads = kHeads * kGroup;
/// Sections of 256 entries: five, the last of them short.
constexpr Index kEntries = 1101;

/// Where a round takes half a minute.
constexpr bool kSanitized = support::kThreadSanitizer || support::kAddressSanitizer;

/// What a call writes.
struct Outputs {
  explicit Outputs(Index tokens)
      : out(static_cast<std::size_t>(tokens * kQueryHeads * kDim)),
        lse(static_cast<std::size_t>(tokens * kQueryHeads)),
        rows(static_cast<std::size_t>(tokens * kHeads * 2 * kEntries)) {}
  std::vector<float> out, lse, rows;
  bool operator==(const Outputs& other) const {
    return same(out, other.out) && same(lse, other.lse) && same(rows, other.rows);
  }
};

/// Random tokens: q, k and v of each.
struct Tokens {
  Tokens(Random& random, Index tokens)
      : count(tokens),
        q(random.normals(tokens * kQueryHeads * kDim)),
        k(random.normals(tokens * kHeads * kDim)),
        v(random.normals(tokens * kHeads * kDim)) {}
  TokenView<const float> queries() const {
    return nhd_view<const float>(q.data(), count, kQueryHeads, kDim);
  }
  TokenView<const float> keys() const {
    return nhd_view<const float>(k.data(), count, kHeads, kDim);
  }
  TokenView<const float> values() const {
    return nhd_view<const float>(v.data(), count, kHeads, kDim);
  }
  Index count;
  std::vector<float> q, k, v;
};

/// The output in place of the queries.
template <class Cache>
Outputs extend(Cache& cache, const Tokens& tokens) {
  Outputs outputs(tokens.count);
  outputs.out = tokens.q;
  cache.extend(
      Chunk<float>{.q = nhd_view<const float>(outputs.out.data(), tokens.count, kQueryHeads, kDim),
                   .k = tokens.keys(),
                   .v = tokens.values(),
                   .out = nhd_view<float>(outputs.out.data(), tokens.count, kQueryHeads, kDim),
                   .lse = outputs.lse.data()});
  return outputs;
}
/// With attention rows, where there is one token.
template <class Cache>
Outputs attend(Cache& cache, const Tokens& tokens, bool rows) {
  Outputs outputs(tokens.count);
  AttendOutputs wanted{.lse = outputs.lse.data()};
  if (rows) {
    wanted.rows = {outputs.rows.data(), tokens.count, kHeads * 2 * kEntries, 2 * kEntries};
  }
  cache.attend(0, tokens.queries(),
               nhd_view<float>(outputs.out.data(), tokens.count, kQueryHeads, kDim), wanted);
  return outputs;
}

template <class Policy, class Codec>
void check(int workers, const Policy& policy, bool shares_prompts) {
  CAPTURE(workers);
  Random random(41);
  INFO(random);
  const CacheConfig config{.num_q_heads = kQueryHeads,
                           .num_kv_heads = kHeads,
                           .head_dim = kDim,
                           .budget = kEntries - 4,
                           .group_reduce = workers == 2 ? GroupReduce::mean : GroupReduce::max,
                           .page_size = workers == 2 ? 64 : 4096};
  const Threads threads(workers);
  KVCache<Policy, Codec> one(config, policy);
  KVCache<Policy, Codec, Codec, Threads> several(config, policy, threads);
  const Tokens past(random, kEntries);
  one.append(0, past.keys(), past.values());
  several.append(0, past.keys(), past.values());
  // The second round is over what the first compressed.
  for (int round = 0; round < (kSanitized ? 1 : 2); ++round) {
    const Tokens next(random, 1), prompt(random, 53);
    CHECK(attend(one, next, true) == attend(several, next, true));
    CHECK(threads.tasks() > kHeads);
    CHECK(attend(one, next, false) == attend(several, next, false));
    one.observe(0, next.queries());
    several.observe(0, next.queries());
    CHECK((threads.tasks() > kHeads) == (Policy::observes != Observes::nothing));
    CHECK(extend(one, next) == extend(several, next));
    CHECK(threads.tasks() > kHeads);
    CHECK(extend(one, prompt) == extend(several, prompt));
    CHECK((threads.tasks() > kHeads) == shares_prompts);
    one.append(0, prompt.keys(), prompt.values());
    several.append(0, prompt.keys(), prompt.values());
    CHECK(attend(one, prompt, false) == attend(several, prompt, false));
    CHECK(threads.tasks() > kHeads);
    one.compress(0);
    several.compress(0);
    for (Index h = 0; h < kHeads; ++h) CHECK(same(one.entries(0, h), several.entries(0, h)));
  }
}

TEST_CASE("shared heads: the bits of one worker alone") {
  check<Full, float>(2, {}, true);
  check<Full, BFloat16>(6, {}, true);
  check<H2O, Half>(2, {}, false);     // looks at every row of a prompt
  check<KeepKV, float>(6, {}, true);  // at the last 32
  check<ZSMerge, Int8>(2, {}, true);
}

TEST_CASE("shared heads: little work is the caller's alone") {
  Random random(43);
  INFO(random);
  const CacheConfig config{
      .num_q_heads = kQueryHeads, .num_kv_heads = kHeads, .head_dim = kDim, .budget = kEntries};
  const Threads threads(2);
  KVCache<H2O, float, float, Threads> cache(config, {}, threads);
  const auto append = [&](Index tokens) {
    const Tokens some(random, tokens);
    cache.append(0, some.keys(), some.values());
    return threads.tasks();
  };
  const auto observe = [&](Index length) {
    const auto row = random.uniforms(kHeads * length, 0, 1e-3f);
    cache.observe(0, AttentionRows<const float>{row.data(), 1, kHeads * length, length});
    return threads.tasks();
  };
  const auto compress = [&] {
    cache.compress(0);
    return threads.tasks();
  };
  CHECK(append(100) == kHeads);
  CHECK(compress() == kHeads);  // a hundred new tokens may all be victims
  CHECK(append(1) == 0);
  CHECK(observe(101) == 0);
  CHECK(compress() == 0);
  CHECK(append(999) == kHeads);
  CHECK(compress() == kHeads);
  CHECK(append(1) == 0);
  CHECK(observe(1101) == kHeads);
  CHECK(compress() == kHeads);
}

TEST_CASE("shared heads: of several sequences, the last ones") {
  Random random(42);
  INFO(random);
  const CacheConfig config{.num_sequences = 3,
                           .num_q_heads = kQueryHeads,
                           .num_kv_heads = kHeads,
                           .head_dim = kDim,
                           .budget = kEntries};
  const Threads threads(4);  // nine heads: the last one in four parts
  KVCache<H2O, float> one(config);
  KVCache<H2O, float, float, Threads> several(config, {}, threads);
  for (Index s = 0; s < 3; ++s) {
    const Tokens past(random, s == 2 ? 2100 : 3 + s);
    one.append(s, past.keys(), past.values());
    several.append(s, past.keys(), past.values());
  }
  for (const auto& order : {std::vector<Index>{0, 1, 2}, std::vector<Index>{2, 0, 1}}) {
    std::vector<Tokens> tokens;
    std::vector<Outputs> of_one, of_several;
    std::vector<Chunk<float>> chunks_one, chunks_several;
    for (const Index s : order) {
      tokens.emplace_back(random, 1);
      of_one.emplace_back(1);
      of_several.emplace_back(1);
      chunks_one.push_back({s, tokens.back().queries(), tokens.back().keys(),
                            tokens.back().values(),
                            nhd_view<float>(of_one.back().out.data(), 1, kQueryHeads, kDim)});
      chunks_several.push_back(chunks_one.back());
      chunks_several.back().out =
          nhd_view<float>(of_several.back().out.data(), 1, kQueryHeads, kDim);
    }
    one.extend(chunks_one, {.compress_every = kNever});
    several.extend(chunks_several, {.compress_every = kNever});
    // Only a head that is long enough is shared.
    CHECK(threads.tasks() == (order.back() == 2 ? 8 + 4 : 9));
    for (std::size_t i = 0; i < 3; ++i) CHECK(of_one[i] == of_several[i]);
  }
  for (Index s = 0; s < 3; ++s) {
    for (Index h = 0; h < kHeads; ++h) CHECK(same(one.entries(s, h), several.entries(s, h)));
  }
}

/// Threads, and a cache of `heads` heads with `entries` entries each on them.
template <class Policy>
struct ShortHeads {
  ShortHeads(Random& random, Index heads, Index entries)
      : shape{.num_q_heads = heads * kGroup,
              .num_kv_heads = heads,
              .head_dim = kDim,
              .budget = entries} {
    const auto past = random.normals(entries * heads * kDim);
    const auto view = nhd_view<const float>(past.data(), entries, heads, kDim);
    one.append(0, view, view);
    several.append(0, view, view);
    threads.tasks();
  }
  CacheConfig shape;
  Threads threads{2};
  KVCache<Policy> one{shape};
  KVCache<Policy, float, float, Threads> several{shape, {}, threads};
};

/// Tasks of an attention that gives the bits of one worker.
Index tasks_of_attend(Random& random, Index heads, Index entries) {
  ShortHeads<H2O> caches(random, heads, entries);
  const Index q_heads = heads * kGroup;
  const auto q = random.normals(q_heads * kDim);
  std::vector<float> out(q.size()), other(q.size());
  const auto queries = nhd_view<const float>(q.data(), 1, q_heads, kDim);
  caches.one.attend(0, queries, nhd_view<float>(out.data(), 1, q_heads, kDim));
  caches.several.attend(0, queries, nhd_view<float>(other.data(), 1, q_heads, kDim));
  CHECK(same(out, other));
  return caches.threads.tasks();
}
/// Of a step that does, over so many entries.
template <class Policy>
Index tasks_of_extend(Random& random, Index entries) {
  ShortHeads<Policy> caches(random, kHeads, entries - 1);
  const Tokens next(random, 1);
  CHECK(extend(caches.one, next) == extend(caches.several, next));
  for (Index h = 0; h < kHeads; ++h) {
    CHECK(same(caches.one.entries(0, h), caches.several.entries(0, h)));
  }
  return caches.threads.tasks();
}

TEST_CASE("shared heads: a section each where others keep all awake and no policy looks") {
  Random random(44);
  INFO(random);
  CHECK(tasks_of_attend(random, kHeads, 511) == kHeads);
  CHECK(tasks_of_attend(random, kHeads, 512) == 2 + 2);
  CHECK(tasks_of_attend(random, 1, 768) == 1);
  CHECK(tasks_of_attend(random, 1, 769) == 2);
  CHECK(tasks_of_extend<StreamingLLM>(random, 511) == kHeads);
  CHECK(tasks_of_extend<StreamingLLM>(random, 512) == 2 + 2);
  CHECK(tasks_of_extend<H2O>(random, 768) == kHeads);
  CHECK(tasks_of_extend<H2O>(random, 769) == 2 + 2);
}

}  // namespace
