// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tersekv/c_math.hpp"
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
    head.reg(at + 1) = log(static_cast<float>(head.shape().group_size));
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
    const auto of_head = [&](Index g) { return head.stat(g, slot) - head.reg(g); };
    const auto [most, jensen] = bounds_of_sum(head, slot);
    using Float = std::remove_cvref_t<decltype(most)>;
    const Float none = {}, one = none + 1.0f;
    Float sum = {};
    for (Index g = 0; g < group; ++g) sum = sum + exp_at_most(of_head(g) - most);
    const Float least = weighted(head, slot, higher(most + log_at_most(higher(sum, one)), jensen));

    const auto queries = head.int_stat(group, slot);
    const Float spent = as_floats(queries) * head.reg(at);
    const Float lacks = lower(spent, one - exp_at_most(-spent));
    const Float gain = higher(none - (log_at_most(lacks) + kLogGap), none);
    return least + choose(queries > 0, gain, none);
  }
  /// A looser one in a third of the operations: as if averages lacked nothing, and of query heads
  /// that disagree the highest alone.
  template <class Head, class Slot>
  TERSEKV_HD static auto rough_log_mass(const Head& head, Slot slot) {
    const auto [most, jensen] = bounds_of_sum(head, slot);
    return weighted(head, slot, higher(most, jensen));
  }

 private:
  template <class Float>
  struct SumBounds {
    Float most, jensen;  ///< max_g a_g, mean_g a_g + ln group_size
  };
  template <class Head, class Slot>
  TERSEKV_HD static auto bounds_of_sum(const Head& head, Slot slot) {
    const Index group = head.shape().group_size;
    const float share = 1.0f / static_cast<float>(group);
    const auto of_head = [&](Index g) { return head.stat(g, slot) - head.reg(g); };
    auto most = of_head(0), mean = most * share;
    for (Index g = 1; g < group; ++g) {
      most = higher(of_head(g), most);
      mean = mean + of_head(g) * share;  // no sum beyond what the terms are
    }
    return SumBounds<decltype(most)>{most, mean + head.reg(first_register(head) + 1)};
  }
  /// Of the logarithm of a sum, less its rounding, that of the entry's weight times the sum.
  template <class Head, class Slot, class Float>
  TERSEKV_HD static Float weighted(const Head& head, Slot slot, Float sum) {
    // Rounding grows with the terms of all these sums.
    const float each = 2e-6f + 6e-8f * static_cast<float>(head.shape().group_size);
    const float log_group = head.reg(first_register(head) + 1);
    const Float least = sum - ((magnitude(sum) + log_group) * each + 2e-5f);
    return head.has_weights() ? least + log_at_most(head.weight(slot)) : least;
  }

  static constexpr float kLogGap = 0.0597f;  // by which log_at_most may fall short
  template <class Head>
  TERSEKV_HD static Index first_register(const Head& head) {
    return head.shape().group_size + head.head_dim();
  }
};

}  // namespace tersekv::detail
