// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// Lower bounds of PredictedMass's ln mass, with quick bounds in place of its exponentials and
/// logarithms: with a_g = ln S_g - lse_g,
///
///   ln sum_g exp(a_g) >= mean_g a_g + ln group_size,   by Jensen: nearly all where heads agree
///                     >= max_g a_g + ln sum_g exp_at_most(a_g - max_g a_g)   where they do not
///
/// and an average over m queries lacks 1 - decay^m <= min(t, 1 - exp_at_most(-t)), t = -m ln decay.
struct MassBounds {
  /// Behind the scorer's other registers: -ln decay, ln group_size.
  static constexpr Index kRegisters = 2;

  /// A query is observed; on one lane.
  template <class Head>
  TERSEKV_HD static void note_query(const Head& head, float log_decay) {
    const Index at = first_register(head);
    head.reg(at) = -log_decay;
    head.reg(at + 1) = std::log(static_cast<float>(head.shape().group_size));
  }

  /// ln decay, once a query was observed; 0 before.
  template <class Head>
  TERSEKV_HD static float log_decay(const Head& head) {
    return -head.reg(first_register(head));
  }

  /// Of the entry in `slot`. O(group_size).
  template <class Head, class Slot>
  TERSEKV_HD static auto least_log_mass(const Head& head, Slot slot) {
    const Index group = head.shape().group_size, at = first_register(head);
    const float share = 1.0f / static_cast<float>(group), log_group = head.reg(at + 1);
    const auto of_head = [&](Index g) { return head.stat(g, slot) - head.reg(g); };
    auto most = of_head(0), mean = most * share;
    using Float = decltype(most);
    for (Index g = 1; g < group; ++g) {
      most = higher(of_head(g), most);
      mean = mean + of_head(g) * share;  // no sum beyond what the terms are
    }
    const Float none = {}, one = none + 1.0f;
    Float sum = {};
    for (Index g = 0; g < group; ++g) sum = sum + exp_at_most(of_head(g) - most);
    const Float high = higher(most + log_at_most(higher(sum, one)), mean + log_group);
    // Rounding, which grows with the terms of all these sums.
    const float each = 2e-6f + 6e-8f * static_cast<float>(group);
    Float least = high - ((magnitude(high) + log_group) * each + 2e-5f);
    if (head.has_weights()) least = least + log_at_most(head.weight(slot));

    const auto queries = head.int_stat(group, slot);
    const Float spent = as_floats(queries) * head.reg(at);
    const Float lacks = lower(spent, one - exp_at_most(-spent));
    const Float gain = higher(none - (log_at_most(lacks) + kLogGap), none);
    return least + choose(queries > 0, gain, none);
  }

 private:
  static constexpr float kLogGap = 0.0597f;  // by which log_at_most may fall short
  template <class Head>
  TERSEKV_HD static Index first_register(const Head& head) {
    return head.shape().group_size + head.head_dim();
  }
};

}  // namespace tersekv::detail
