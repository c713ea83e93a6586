// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// Into the last of PredictedMass's statistics a lower bound of the predicted ln mass, without the
/// exponentials and logarithms of its sum: with a_g = ln S_g - lse_g,
///
///   ln sum_g exp(a_g) >= max(max_g a_g, mean_g a_g + ln group_size)   (the latter by Jensen)
///
/// Where heads agree, or one of them has all the mass, little is left out. O(group_size n).
template <class Team, class Head>
TERSEKV_HD void bound_masses(Team& team, const Head& head, float log_decay) {
  const Index group = head.shape().group_size;
  const float heads = static_cast<float>(group), log_heads = std::log(heads);
  const std::int32_t full = queries_until_full(log_decay);
  const auto bound = [&](PageSlot slot) -> float& { return head.stat(group + 1, slot); };
  team.for_each_run(head, head.length(), [&](PageSlot first, Index count) {
    float most[Team::kRunLength], sum[Team::kRunLength];
    for (Index i = 0; i < count; ++i) {
      most[i] = sum[i] = head.stat(0, first.plus(i)) - head.reg(0);
    }
    for (Index g = 1; g < group; ++g) {
      for (Index i = 0; i < count; ++i) {
        const float here = head.stat(g, first.plus(i)) - head.reg(g);
        most[i] = here > most[i] ? here : most[i];
        sum[i] += here;
      }
    }
    for (Index i = 0; i < count; ++i) {
      const float mean = sum[i] * (1.0f / heads) + log_heads;
      const float high = mean > most[i] ? mean : most[i];
      bound(first.plus(i)) = high - (1e-5f + 2e-6f * std::fabs(high));  // rounding
    }
    for (Index i = 0; i < count; ++i) {
      const PageSlot slot = first.plus(i);
      bound(slot) -= log_missing(log_decay, head.int_stat(group, slot), full);
    }
    if (!head.has_weights()) return;
    for (Index i = 0; i < count; ++i) {
      bound(first.plus(i)) += log_at_most(head.weight(first.plus(i)));
    }
  });
}

}  // namespace tersekv::detail
