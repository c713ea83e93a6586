// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "given_weights.hpp"
#include "support/compare.hpp"
#include "support/golden.hpp"
#include "support/random.hpp"
#include "tersekv/policies/full.hpp"
#include "tersekv/policies/zsmerge.hpp"

// ZSMerge's Theorem 1: for 0 <= alpha <= 1 no uncompressed entry's attention is below that in the
// full cache, whatever the query.

using support::close;
using support::close_all;
using support::GivenWeights;
using support::GoldenCase;
using support::Random;
using tersekv::Index;

namespace {

/// Attention of one query head per slot, output and lse.
struct Row {
  std::vector<float> attention, output;
  float lse = 0;
};

template <class Cache>
Row attend(Cache& cache, const float* query) {
  const Index n = cache.length(0, 0), dim = cache.config().head_dim;
  Row row{std::vector<float>(static_cast<std::size_t>(n)),
          std::vector<float>(static_cast<std::size_t>(dim)), 0};
  cache.attend(0, tersekv::nhd_view(query, 1, 1, dim),
               tersekv::nhd_view(row.output.data(), 1, 1, dim),
               {.lse = &row.lse, .rows = {row.attention.data(), 1, n, n}});
  return row;
}

/// Rounding may take a little of an equality.
constexpr float kRounding = 1e-5f;

template <class Cache>
void extend(Cache& cache, Random random, Index tokens, Index dim) {
  const auto q = random.normals(tokens * dim, 2), k = random.normals(tokens * dim),
             v = random.normals(tokens * dim);
  std::vector<float> out(q.size());
  cache.extend(
      tersekv::nhd_view(q.data(), tokens, 1, dim), tersekv::nhd_view(k.data(), tokens, 1, dim),
      tersekv::nhd_view(v.data(), tokens, 1, dim), tersekv::nhd_view(out.data(), tokens, 1, dim));
}

/// Compresses a random trace and asks both caches many later queries. Returns the smallest ratio
/// of compressed to full attention among the uncompressed entries.
float smallest_ratio(std::uint64_t seed, float alpha, float& largest_lse_gain) {
  Random random(seed);
  const Index dim = random.pick(std::vector<Index>{2, 8, 24}), budget = random.integer(6, 20);
  const auto policy = tersekv::make_zsmerge({.residual = random.integer(1, 3), .alpha = alpha});
  const tersekv::CacheConfig config{
      .num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim, .budget = budget};
  tersekv::KVCache<tersekv::ZSMerge> compressed(config, policy);
  tersekv::KVCache<tersekv::Full> full(config);
  for (int call = 0; call < 12; ++call) {
    const Index tokens = call == 0 ? random.integer(1, 50) : random.integer(1, 3);
    const Random data(seed * 1000 + static_cast<std::uint64_t>(call));
    extend(compressed, data, tokens, dim);
    extend(full, data, tokens, dim);
  }
  float smallest = 1e30f;
  int compared = 0;
  for (int later = 0; later < 20; ++later) {
    const auto query = random.normals(dim, random.uniform(0, 8));
    const Row want = attend(full, query.data()), got = attend(compressed, query.data());
    const auto head = compressed.head(0, 0);
    for (Index i = head.state().pinned; i < head.length(); ++i) {
      const float exact = want.attention[static_cast<std::size_t>(head.position(i))];
      if (exact < 1e-30f) continue;  // clamped
      const float ratio = got.attention[static_cast<std::size_t>(i)] / exact;
      REQUIRE(support::is_finite(ratio));
      smallest = std::min(smallest, ratio);
      ++compared;
    }
    REQUIRE(support::is_finite(got.lse));
    REQUIRE(support::is_finite(want.lse));
    largest_lse_gain = std::max(largest_lse_gain, got.lse - want.lse);
  }
  REQUIRE(compared > 0);
  return smallest;
}

}  // namespace

TEST_CASE("Theorem 1 holds for ZSMerge: uncompressed entries never lose attention") {
  for (float alpha : {0.0f, 0.3f, 0.6f, 0.9f, 1.0f}) {
    float largest_ratio = 0, largest_lse_gain = -1e30f;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      INFO("alpha " << alpha << ", seed " << seed);
      const float ratio = smallest_ratio(seed, alpha, largest_lse_gain);
      CHECK(ratio >= 1 - kRounding);
      largest_ratio = std::max(largest_ratio, ratio);
    }
    // The same in terms of mass: slots never weigh more than the tokens they stand for. And the
    // test compares something that changes.
    CHECK(largest_lse_gain <= 2e-5f);
    CHECK(largest_ratio > 1.0001f);
  }
}

TEST_CASE("the check of Theorem 1 can fail: beyond alpha 1 slots weigh too much") {
  CHECK_THROWS_AS(tersekv::make_zsmerge({.alpha = 1.5f}).validate({.head_dim = 4}, 10),
                  std::invalid_argument);
  Random random(3);
  INFO(random);
  GivenWeights policy;
  policy.exponent = 1.5f;
  const Index dim = 4;
  tersekv::KVCache<GivenWeights> compressed({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim},
                                            policy);
  tersekv::KVCache<tersekv::Full> full({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim});
  // Ten alike tokens in one slot of weight 10, and one token as it is.
  std::vector<float> keys(10 * 4, 0.5f);
  const auto raw = random.normals(dim);
  keys.insert(keys.end(), raw.begin(), raw.end());
  full.append(0, tersekv::nhd_view(keys.data(), 11, 1, dim),
              tersekv::nhd_view(keys.data(), 11, 1, dim));
  const std::vector<float> weights{10.0f, 1.0f};
  compressed.append(0, tersekv::nhd_view(keys.data() + 9 * dim, 2, 1, dim),
                    tersekv::nhd_view(keys.data() + 9 * dim, 2, 1, dim), {weights.data(), 1});
  const auto query = random.normals(dim);
  CHECK(attend(compressed, query.data()).attention[1] <
        (1 - kRounding) * attend(full, query.data()).attention[10]);
}

TEST_CASE("attention to slots and tokens agrees with the golden Theorem 1", "[golden]") {
  const GoldenCase golden("zsmerge_theorem1");
  const auto [relative, absolute] = golden.tolerance();
  const auto dim = golden.setting<Index>("head_dim"), slots = golden.setting<Index>("slots"),
             tokens = golden.setting<Index>("tokens");
  const auto alphas = golden.setting<std::vector<float>>("alphas");
  for (Index t = 0; t < golden.setting<Index>("trials"); ++t) {
    const float* query = golden.floats("q").row(t);
    const tersekv::CacheConfig config{.num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim};
    tersekv::KVCache<tersekv::Full> full(config);
    full.append(0, tersekv::nhd_view(golden.floats("k").row(t), tokens, 1, dim),
                tersekv::nhd_view(golden.floats("v").row(t), tokens, 1, dim));
    const Row exact = attend(full, query);
    for (Index a = 0; a < std::ssize(alphas); ++a) {
      INFO("trial " << t << ", alpha " << alphas[static_cast<std::size_t>(a)]);
      GivenWeights policy;
      policy.exponent = alphas[static_cast<std::size_t>(a)];
      tersekv::KVCache<GivenWeights> cache(config, policy);
      cache.append(0, tersekv::nhd_view(golden.floats("slot_keys").row(t), slots, 1, dim),
                   tersekv::nhd_view(golden.floats("slot_values").row(t), slots, 1, dim),
                   {golden.floats("slot_weights").row(t), 1});
      std::vector<Index> raw;
      const float one = 1;
      for (Index i = 0; i < tokens; ++i) {
        if (golden.integers("slot_of_token")(t, i) >= 0) continue;
        cache.append(0, tersekv::nhd_view(golden.floats("k").row(t, i), 1, 1, dim),
                     tersekv::nhd_view(golden.floats("v").row(t, i), 1, 1, dim), {&one, 1});
        raw.push_back(i);
      }
      const Row got = attend(cache, query);
      CHECK(close_all(got.output, golden.floats("output_compressed").vector(t, a), relative,
                      absolute));
      for (Index r = 0; r < std::ssize(raw); ++r) {
        const float before =
            exact.attention[static_cast<std::size_t>(raw[static_cast<std::size_t>(r)])];
        const float after = got.attention[static_cast<std::size_t>(slots + r)];
        CHECK(close(before, golden.floats("attention_full")(t, r), relative, absolute));
        CHECK(close(after, golden.floats("attention_compressed")(t, a, r), relative, absolute));
        CHECK(after >= before);
      }
    }
  }
}
