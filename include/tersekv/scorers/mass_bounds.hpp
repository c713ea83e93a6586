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
  team.for_each_vector(head, head.length(), [&](auto slot) {
    auto most = head.stat(0, slot) - head.reg(0), sum = most;
    for (Index g = 1; g < group; ++g) {
      const auto here = head.stat(g, slot) - head.reg(g);
      most = choose(here > most, here, most);
      sum = sum + here;
    }
    const auto mean = sum * (1.0f / heads) + log_heads;
    const auto high = choose(mean > most, mean, most);
    auto bound = high - (magnitude(high) * 2e-6f + 1e-5f);  // rounding
    bound = bound - log_missing<decltype(bound)>(log_decay, head.int_stat(group, slot), full);
    if (head.has_weights()) bound = bound + log_at_most(head.weight(slot));
    head.set_stat(group + 1, slot, bound);
  });
}

}  // namespace tersekv::detail
