// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// Lower bounds of PredictedMass's ln mass. Members, which g++ puts in line as functions by
/// themselves are not: a call for each vector takes KeepKV's `extend` 1.08 of the time.
struct MassBounds {
  /// Of one worked out in vectors, which may be rounded otherwise than an entry's by itself.
  /// Rounding grows with the terms of its sums, of which those that it does not show are some 100.
  template <class Head, class Float>
  TERSEKV_HD static Float less_rounding(const Head& head, Float log_mass) {
    const float each = 2e-6f + 6e-8f * static_cast<float>(head.shape().group_size);
    return log_mass - (magnitude(log_mass) * each + 100.0f * each);
  }

  /// A quick one, as if averages lacked nothing, and with a_g = ln S_g - lse_g,
  ///
  ///   ln sum_g exp(a_g) >= max_g a_g,  mean_g a_g + ln group_size, by Jensen's inequality
  template <class Head, class Slot>
  TERSEKV_HD static auto rough_log_mass(const Head& head, Slot slot) {
    const Index group = head.shape().group_size;
    const float share = 1.0f / static_cast<float>(group);
    const float log_group = head.reg(group + head.head_dim() + 1);
    const auto of_head = [&](Index g) { return head.stat(g, slot) - head.reg(g); };
    auto most = of_head(0), mean = most * share;
    for (Index g = 1; g < group; ++g) {
      most = higher(of_head(g), most);
      mean = mean + of_head(g) * share;  // no sum beyond what the terms are
    }
    return less_rounding(head, higher(most, mean + log_group)) + log_at_most(head.weight(slot));
  }
};

}  // namespace tersekv::detail
