// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/c_math.hpp"
#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// Joins the attention of two disjoint sets of entries, exactly: (out_a, lse_a) becomes that of
/// their union. Log-weights are inside lse, so compressed and exact parts mix. Both lse
/// are finite. O(head_dim).
TERSEKV_HD inline void merge_states(float* out_a, float& lse_a, const float* out_b, float lse_b,
                                    Index head_dim) {
  const float max = lse_a > lse_b ? lse_a : lse_b;
  const float mass_a = detail::exp(lse_a - max), mass_b = detail::exp(lse_b - max);
  const float total = mass_a + mass_b;
  for (Index j = 0; j < head_dim; ++j) {
    out_a[j] = (mass_a * out_a[j] + mass_b * out_b[j]) / total;
  }
  lse_a = max + detail::log(total);
}

}  // namespace tersekv
