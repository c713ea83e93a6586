// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv {

/// KeepKV's score prediction. Per query head, S_gi is an exponential moving average of
/// s_gi = exp(l_gi), kept as a logarithm (exp of a real model's logits leaves float's range):
///
///   S_gi <- decay S_gi + (1 - decay) s_gi,   predicted S^_gi = S_gi / (1 - decay^m)
///
/// with m the number of queries the entry was averaged over; of a prompt the last `window`. The
/// score is the logarithm of the group's predicted attention mass
///
///   m_i = w_i sum_g S^_gi / Z_g,   Z_g = exp(lse_g) of the latest query
///
/// worked out where it is asked for: where the lowest is looked for, a lower bound spares most.
///
/// O(group_size n) per query. Memory: group_size + 1 numbers per entry.
struct PredictedMass : ScorerBase {
  static constexpr Observes observes = Observes::logits;
  float decay = 0.98f;  ///< 1e-6 to 0.9999 (nearer 1, ln decay is lost beside a float's logit); the
                        ///< paper's alpha_ema
  Index window = 32;    ///< >= 1

  void validate(const Shape&) const {
    detail::require_between("decay", decay, 1e-6f, 0.9999f);
    detail::require_count("window", window, 1);
  }
  /// ln S per query head, then m.
  TERSEKV_HD Index statistics(const Shape& shape) const { return shape.group_size + 1; }
  /// lse per query head of the latest query, the group's mean query, then what bounds are made of.
  Index registers(const Shape& shape) const {
    return shape.group_size + shape.head_dim + kBoundRegisters;
  }
  Index observed_rows(Index rows) const { return std::min(rows, window); }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    const Index group = head.shape().group_size, dim = head.head_dim();
    const float log_decay = std::log(decay), log_gain = std::log1p(-decay);
    team.for_each_vector(head, row.visible, [&](auto slot) {
      const auto queries = head.int_stat(group, slot);
      for (Index g = 0; g < group; ++g) {
        const float* logits = row.logits + g * row.logit_stride;
        const auto now = log_gain + detail::element_at(logits, slot);
        const auto both = detail::log_add(log_decay + head.stat(g, slot), now);
        head.set_stat(g, slot, detail::choose(queries == 0, now, both));
      }
      head.set_stat(group, slot, queries + 1);
    });
    team.for_each(group, [&](Index g) {
      head.reg(g) = row.lse[g];
      if (g == 0) note_query(head, log_decay);
    });
    team.for_each(dim, [&](Index j) {
      float sum = 0;
      for (Index g = 0; g < group; ++g) sum += row.query[g * dim + j];
      head.reg(group + j) = sum / static_cast<float>(group);
    });
  }
  template <class Head, class Slot>
  TERSEKV_HD float score(const Head& head, Slot slot) const {
    return log_mass(head, slot);
  }
  /// A lower bound of `score`, without its exponentials and logarithms: with a_g = ln S_g - lse_g,
  ///
  ///   ln sum_g exp(a_g) >= max(max_g a_g, mean_g a_g + ln group_size)   (the latter by Jensen)
  ///
  /// and no average lacks less than one over all queries does. Where heads agree, or one of them
  /// has all the mass, little is left out.
  template <class Head, class Slot>
  TERSEKV_HD auto least_score(const Head& head, Slot slot) const {
    const Index group = head.shape().group_size, at = bounds_at(head);
    auto most = head.stat(0, slot) - head.reg(0), sum = most;
    using Float = decltype(most);
    for (Index g = 1; g < group; ++g) {
      const auto here = head.stat(g, slot) - head.reg(g);
      most = detail::higher(here, most);
      sum = sum + here;
    }
    const auto mean = sum * (1.0f / static_cast<float>(group)) + head.reg(at + 2);
    const auto high = detail::higher(most, mean);
    auto least = high - (detail::magnitude(high) * 2e-6f + 1e-5f);  // rounding
    const Float none = {}, missing = none + head.reg(at + 1);
    least = least - detail::choose(head.int_stat(group, slot) > 0, missing, none);
    if (head.has_weights()) least = least + detail::log_at_most(head.weight(slot));
    return least;
  }

  /// ln of the predicted mass of the group.
  template <class Head, class Slot>
  TERSEKV_HD float log_mass(const Head& head, Slot slot) const {
    const Index group = head.shape().group_size;
    const auto of_head = [&](Index g) { return head.stat(g, slot) - head.reg(g); };
    float highest = of_head(0), sum = 0;
    for (Index g = 1; g < group; ++g) highest = of_head(g) > highest ? of_head(g) : highest;
    for (Index g = 0; g < group; ++g) sum += detail::exp_of_negative(of_head(g) - highest);
    const float log_decay = std::log(decay);
    const float missing = detail::log_missing(log_decay, head.int_stat(group, slot),
                                              detail::queries_until_full(log_decay));
    return highest + detail::log_of(sum) - missing + detail::log_of(head.weight(slot));
  }
  /// ln S^ for query head g of the group.
  template <class Head>
  TERSEKV_HD float log_score(const Head& head, Index slot, Index g) const {
    const Index group = head.shape().group_size;
    const float log_decay = std::log(decay);
    return head.stat(g, slot) - detail::log_missing(log_decay, head.int_stat(group, slot),
                                                    detail::queries_until_full(log_decay));
  }
  /// Component j of the latest query, averaged over the group.
  template <class Head>
  TERSEKV_HD float mean_query(const Head& head, Index j) const {
    return head.reg(head.shape().group_size + j);
  }
  /// `target` takes over `victim`: it predicts the weighted mean of both scores and keeps its own
  /// m. Before the weights change, on one lane.
  template <class Head>
  TERSEKV_HD void merge(const Head& head, Index victim, Index target) const {
    const float log_victim = std::log(head.weight(victim));
    const float log_target = std::log(head.weight(target));
    const float log_total = std::log(head.weight(victim) + head.weight(target));
    for (Index g = 0; g < head.shape().group_size; ++g) {
      const float before = log_score(head, target, g);
      const float both =
          detail::log_add(log_victim + log_score(head, victim, g), log_target + before);
      head.stat(g, target) += both - log_total - before;
    }
  }

 private:
  /// How many queries there were, ln(1 - decay^queries), ln group_size.
  static constexpr Index kBoundRegisters = 3;
  template <class Head>
  TERSEKV_HD static Index bounds_at(const Head& head) {
    return head.shape().group_size + head.head_dim();
  }
  template <class Head>
  TERSEKV_HD static void note_query(const Head& head, float log_decay) {
    const Index at = bounds_at(head);
    const float queries = head.reg(at) + 1.0f;  // stops at 2^24, when no average lacks anything
    head.reg(at) = queries;
    head.reg(at + 1) = detail::log_missing(log_decay, static_cast<std::int32_t>(queries),
                                           detail::queries_until_full(log_decay));
    head.reg(at + 2) = std::log(static_cast<float>(head.shape().group_size));
  }
};

}  // namespace tersekv
