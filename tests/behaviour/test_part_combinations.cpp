// SPDX-License-Identifier: Apache-2.0

// Parts that the library's own policies do not put together, or not with these parameters.

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "refusal.hpp"
#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

namespace {

using namespace tersekv;

CacheConfig one_head(Index budget) {
  return {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4, .budget = budget};
}

template <class Cache>
void extend(Cache& cache, Index tokens, Index compress_every) {
  support::Random random(tokens);
  const std::vector<float> rows = random.normals(tokens * 4);
  std::vector<float> out(rows.size());
  const auto given = nhd_view<const float>(rows.data(), tokens, 1, 4);
  cache.extend(
      Chunk<float>{.q = given, .k = given, .v = given, .out = nhd_view(out.data(), tokens, 1, 4)},
      {.compress_every = compress_every});
}

/// Leaves out what MergerBase says of `spare`, as a merger may that was written for pairs.
struct SpareNone : ZipMerge {
  Index spare() const { return 0; }
};
using Pairs = Policy<PredictedMass, MostSimilarPair, SpareNone>;

Pairs pairs() {
  MostSimilarPair selector;
  selector.protection = {.sinks = 0, .recent = 8};
  return Pairs({}, selector);
}

}  // namespace

TEST_CASE("a pair takes two unprotected entries, whatever the merger spares") {
  // Of 9 entries only one would be.
  CHECK(support::refused([] { KVCache<Pairs>(one_head(8), pairs()); }, {"budget", "9 entries"}));
  KVCache<Pairs> cache(one_head(9), pairs());
  extend(cache, 12, 1);
  CHECK(cache.length(0, 0) == 9);
  CHECK(cache.counts(0, 0).merges == 3);
}

TEST_CASE("who compresses prompts only cannot wait for tokens") {
  using Prompts = Policy<CumulativeAttention, LowestScore, Drop>;
  LowestScore selector;
  selector.prompts_only = true;
  KVCache<Prompts> cache(one_head(16), Prompts({}, selector));
  extend(cache, 40, 0);
  CHECK(cache.length(0, 0) == 16);
  for (int i = 0; i < 5; ++i) extend(cache, 1, 0);
  CHECK(cache.length(0, 0) == 21);
  extend(cache, 4, 2);  // two at a time are two short prompts
  CHECK(cache.length(0, 0) == 16);
  selector.interval = 4;
  CHECK(support::refused([&] { KVCache<Prompts>(one_head(16), Prompts({}, selector)); },
                         {"interval", "1 with prompts_only", "4"}));
}
