// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

// A scorer's lower bound of its scores is one, rounding included, and near enough to be of use.

using support::Random;
using tersekv::Index;

namespace {

constexpr Index kDim = 8, kKv = 2;

using Cache = tersekv::KVCache<tersekv::KeepKV>;

/// Tokens whose queries the cache sees, or of which it sees nothing but that they are there.
void add(Cache& cache, Random& random, Index count, float spread, bool seen) {
  const Index q_heads = cache.config().num_q_heads;
  const auto q = random.normals(count * q_heads * kDim, spread);
  const auto k = random.normals(count * kKv * kDim, spread);
  const auto v = random.normals(count * kKv * kDim);
  std::vector<float> out(q.size());
  const auto view = [&](auto& x, Index heads) {
    return tersekv::nhd_view(x.data(), count, heads, kDim);
  };
  if (seen) {
    cache.extend(view(q, q_heads), view(k, kKv), view(v, kKv), view(out, q_heads));
  } else {
    cache.append(0, view(k, kKv), view(v, kKv));
    cache.compress(0);
  }
}

void check_bounds(const Cache& cache, float left_out) {
  const auto& scorer = cache.policy().scorer();
  for (Index h = 0; h < kKv; ++h) {
    const auto head = cache.head(0, h);
    for (Index i = 0; i < head.length(); ++i) {
      const float score = scorer.score(head, i), least = scorer.least_score(head, i);
      CHECK(least <= score);
      // An entry that has taken others over keeps the highest of their bounds.
      const float merged = std::log(head.weight(i));
      CHECK(score <= least + left_out + merged + 1e-5f * (1 + std::abs(score)));
    }
  }
}

}  // namespace

TEST_CASE("KeepKV's lower bound of a mass is one, and off by no more than what it leaves out") {
  Random random(3);
  INFO(random);
  for (Index group : {1, 3, 8}) {
    for (float spread : {0.1f, 1.0f, 30.0f}) {
      Cache cache({.num_q_heads = kKv * group, .num_kv_heads = kKv, .head_dim = kDim, .budget = 40},
                  tersekv::make_keepkv({.decay = 0.9f}));
      // Of the heads' sum and of the weight's logarithm.
      const float left_out = std::log(static_cast<float>(group)) + 0.07f;
      for (Index count : {60, 1, 1, 7, 1, 0, 1, 1}) {
        INFO("group " << group << ", spread " << spread << ", " << count << " tokens");
        add(cache, random, count > 0 ? count : 2, spread, count > 0);
        check_bounds(cache, left_out);
      }
    }
  }
}
