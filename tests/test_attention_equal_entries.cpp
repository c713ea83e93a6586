// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "tersekv/kv_cache.hpp"
#include "tersekv/policies/full.hpp"

using tersekv::Index;

TEST_CASE("attention over many equal entries is exact enough for every page size") {
  // Equal terms round the same way at every addition, so long partial sums would show. (Ones would
  // not round at all.)
  const Index n = 30000, q_heads = 3;
  const float value = 0.7f;
  const std::vector<float> zeros(static_cast<std::size_t>(n)), values(zeros.size(), value);
  for (const Index page : {16, 64, 512, 4096}) {
    tersekv::KVCache<tersekv::Full> cache(
        {.num_q_heads = q_heads, .num_kv_heads = 1, .head_dim = 1, .page_size = page});
    double worst = 0;
    for (Index held = 0; held < n; held += 1000) {
      cache.append(0, tersekv::nhd_view(zeros.data(), 1000, 1, 1),
                   tersekv::nhd_view(values.data(), 1000, 1, 1));
      std::vector<float> out(static_cast<std::size_t>(q_heads));
      cache.attend(0, tersekv::nhd_view(zeros.data(), 1, q_heads, 1),
                   tersekv::nhd_view(out.data(), 1, q_heads, 1));
      for (const float x : out)
        worst = std::max(worst, std::abs(static_cast<double>(x) / double{value} - 1));
    }
    CAPTURE(page);
    CHECK(worst < 8e-6);
    CHECK(worst > 1e-8);  // some rounding there must be
  }
}
