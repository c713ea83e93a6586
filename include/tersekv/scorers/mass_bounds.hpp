// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// Lower bounds of PredictedMass's ln mass, without its exponentials and logarithms: with
/// a_g = ln S_g - lse_g,
///
///   ln sum_g exp(a_g) >= max(max_g a_g, mean_g a_g + ln group_size)   (the latter by Jensen)
///
/// and no average lacks less than one over all queries does. Where heads agree, or one of them has
/// all the mass, little is left out.
struct MassBounds {
  /// Behind the scorer's other registers: how many queries there were, ln(1 - decay^queries),
  /// ln group_size.
  static constexpr Index kRegisters = 3;

  /// A query is observed; on one lane.
  template <class Head>
  TERSEKV_HD static void note_query(const Head& head, float log_decay) {
    const Index at = first_register(head);
    const float queries = head.reg(at) + 1.0f;  // stops at 2^24, when no average lacks anything
    head.reg(at) = queries;
    head.reg(at + 1) =
        log_missing(log_decay, static_cast<std::int32_t>(queries), queries_until_full(log_decay));
    head.reg(at + 2) = std::log(static_cast<float>(head.shape().group_size));
  }

  /// Of the entry in `slot`. O(group_size).
  template <class Head, class Slot>
  TERSEKV_HD static auto least_log_mass(const Head& head, Slot slot) {
    const Index group = head.shape().group_size, at = first_register(head);
    const float share = 1.0f / static_cast<float>(group), log_group = head.reg(at + 2);
    auto most = head.stat(0, slot) - head.reg(0), mean = most * share;
    using Float = decltype(most);
    for (Index g = 1; g < group; ++g) {
      const Float here = head.stat(g, slot) - head.reg(g);
      most = higher(here, most);
      mean = mean + here * share;  // no sum beyond what the terms are
    }
    const Float high = higher(most, mean + log_group);
    // Rounding, which grows with the terms of both sums: this one and that of exponentials.
    const float each = 2e-6f + 6e-8f * static_cast<float>(group);
    Float least = high - ((magnitude(high) + log_group) * each + 1e-5f);
    const Float none = {}, missing = none + head.reg(at + 1);
    least = least - choose(head.int_stat(group, slot) > 0, missing, none);
    if (head.has_weights()) least = least + log_at_most(head.weight(slot));
    return least;
  }

 private:
  template <class Head>
  TERSEKV_HD static Index first_register(const Head& head) {
    return head.shape().group_size + head.head_dim();
  }
};

}  // namespace tersekv::detail
