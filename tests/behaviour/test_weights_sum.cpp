// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

// Whatever merges instead of evicting keeps count: weights sum to the tokens seen.

using support::Random;
using tersekv::Index;

namespace {

/// Weights of integers are exact in float, so their sum is equal, not close. `may_evict`: whether a
/// victim may find nobody to take it; heads to which that has happened are then set aside.
template <class PolicyType>
void check_sum(const std::string& name, const PolicyType& policy, Index budget,
               bool may_evict = false) {
  const Index q_heads = 4, kv_heads = 2, dim = 6;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Random random(seed);
    INFO(name << ", " << random);
    tersekv::KVCache<PolicyType> cache({.num_q_heads = q_heads,
                                        .num_kv_heads = kv_heads,
                                        .head_dim = dim,
                                        .budget = budget,
                                        .page_size = 16},
                                       policy);
    Index merges = 0;
    for (int call = 0; call < 25; ++call) {
      const Index tokens = random.chance(0.6) ? 1 : random.integer(2, 40);
      const auto q = random.normals(tokens * q_heads * dim), scores = random.normals(tokens * 2),
                 k = random.normals(tokens * kv_heads * dim),
                 v = random.normals(tokens * kv_heads * dim);
      std::vector<float> out(q.size());
      cache.extend(tersekv::Chunk<float>{.q = tersekv::nhd_view(q.data(), tokens, q_heads, dim),
                                         .k = tersekv::nhd_view(k.data(), tokens, kv_heads, dim),
                                         .v = tersekv::nhd_view(v.data(), tokens, kv_heads, dim),
                                         .out = tersekv::nhd_view(out.data(), tokens, q_heads, dim),
                                         .token_scores = {scores.data(), kv_heads}},
                   {.compress_every = random.integer(0, 3)});
      for (Index h = 0; h < kv_heads; ++h) {
        const tersekv::Counts counts = cache.counts(0, h);
        if (!may_evict) REQUIRE(counts.evictions == 0);
        if (counts.evictions > 0) continue;
        float sum = 0;
        for (const tersekv::Entry& entry : cache.entries(0, h)) sum += entry.weight;
        REQUIRE(sum == static_cast<float>(cache.tokens_seen(0)));
        REQUIRE(cache.length(0, h) + counts.merges == cache.tokens_seen(0));
        merges += counts.merges;
      }
    }
    CHECK(merges > 0);
  }
}

}  // namespace

TEST_CASE("ZSMerge's weights sum to the tokens seen") {
  check_sum("defaults", tersekv::make_zsmerge(), 20);
  check_sum("three slots", tersekv::make_zsmerge({.residual = 3, .alpha = 0.5f}), 20);
  check_sum("smallest budget", tersekv::make_zsmerge({.proximity = 1}), 2);
}

TEST_CASE("KeepKV's votes sum to the tokens seen") {
  check_sum("victim", tersekv::make_keepkv(), 14);
  check_sum("pair", tersekv::make_keepkv_pair(), 14);
  check_sum("paper", tersekv::make_keepkv_paper(), 14);
  check_sum("smallest budget", tersekv::make_keepkv({.recent = 0, .sinks = 0}), 1);
  check_sum("smallest budget, pair", tersekv::make_keepkv_pair({.recent = 0, .sinks = 0}), 1);
}

TEST_CASE("weights of other combinations sum to the tokens seen") {
  using namespace tersekv;
  FusedWindowAttention fused;
  fused.window = 4;
  LowestScore lowest;
  lowest.protection.recent = 4;
  check_sum("fused window, residual slots",
            Policy<FusedWindowAttention, LowestScore, ResidualSlots>(fused, lowest), 12);
  check_sum("token score, residual slots",
            Policy<TokenScore, LowestScore, ResidualSlots>(TokenScore{}, lowest), 12);
  BelowThreshold below;
  below.threshold = 0.5f;
  below.protection.recent = 3;
  ResidualSlots slots;
  slots.residual = 2;
  check_sum("below threshold, residual slots",
            Policy<TokenScore, BelowThreshold, ResidualSlots>(TokenScore{}, below, slots),
            kUnlimited);
}

TEST_CASE("several victims of a threshold are zip-merged without losing votes") {
  using namespace tersekv;
  BelowThreshold below;
  below.threshold = -2.5f;  // of ln predicted mass: some leave in a chunk, some stay
  below.protection.sinks = 2;
  below.protection.recent = 3;
  check_sum("below threshold, zip merge",
            Policy<PredictedMass, BelowThreshold, ZipMerge>(PredictedMass{}, below), kUnlimited,
            true);
}
