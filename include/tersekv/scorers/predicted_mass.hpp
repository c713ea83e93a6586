// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "tersekv/c_math.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/scorers/mass_bounds.hpp"

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
  /// 1e-6 to 0.9999; the paper's alpha_ema. The longer an average remembers, the more of it is
  /// rounded away: of ln S some 1e-5 with 0.98 and logits of 20 to 60, 1e-3 with 0.999.
  float decay = 0.98f;
  Index window = 32;  ///< >= 1
  bool operator==(const PredictedMass&) const = default;

  void validate(const Shape&) const {
    detail::require_between("decay", decay, 1e-6f, 0.9999f);
    detail::require_count("window", window, 1);
  }
  /// ln S per query head, then m.
  TERSEKV_HD Index statistics(const Shape& shape) const { return shape.group_size + 1; }
  /// lse per query head of the latest query, the group's mean query, ln decay, ln group_size.
  Index registers(const Shape& shape) const { return shape.group_size + shape.head_dim + 2; }
  Index observed_rows(Index rows) const { return std::min(rows, window); }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    const Index group = head.shape().group_size, dim = head.head_dim();
    const float log_decay = detail::log(decay), log_gain = detail::log1p(-decay);
    const auto& asked = detail::asking_for<Team>(head, {.last = group + 1});
    team.for_each_vector(asked, row.visible, [&](auto slot) {
      const auto queries = head.int_stat(group, slot);
      for (Index g = 0; g < group; ++g) {
        const auto now = log_gain + element_at(row.logits + g * row.logit_stride, slot);
        const auto both = detail::log_add(log_decay + head.stat(g, slot), now);
        head.set_stat(g, slot, detail::choose(queries == 0, now, both));
      }
      head.set_stat(group, slot, queries + 1);
    });
    team.for_each(group, [&](Index g) {
      head.reg(g) = row.lse[g];
      if (g == 0) head.reg(group + dim) = log_decay;
      if (g == 0) head.reg(group + dim + 1) = detail::log(static_cast<float>(group));
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
  /// Lower bounds of `score`: one that differs by rounding alone, and one that is quick.
  template <class Head, class Slot>
  TERSEKV_HD auto least_score(const Head& head, Slot slot) const {
    return detail::MassBounds::less_rounding(head, log_mass(head, slot));
  }
  template <class Head, class Slot>
  TERSEKV_HD auto rough_score(const Head& head, Slot slot) const {
    return detail::MassBounds::rough_log_mass(head, slot);
  }

  /// ln of the predicted mass of the group.
  template <class Head, class Slot>
  TERSEKV_HD auto log_mass(const Head& head, Slot slot) const {
    const Index group = head.shape().group_size;
    const auto of_head = [&](Index g) { return head.stat(g, slot) - head.reg(g); };
    auto highest = of_head(0);
    for (Index g = 1; g < group; ++g) highest = detail::higher(of_head(g), highest);
    auto sum = detail::exp_of_negative(of_head(0) - highest);
    for (Index g = 1; g < group; ++g) sum = sum + detail::exp_of_negative(of_head(g) - highest);
    return highest + detail::log_of(sum) - log_missing(head, slot) +
           detail::log_of(head.weight(slot));
  }
  /// ln S^ for query head g of the group.
  template <class Head>
  TERSEKV_HD float log_score(const Head& head, Index slot, Index g) const {
    return head.stat(g, slot) - log_missing(head, slot);
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
    const float log_victim = detail::log(head.weight(victim));
    const float log_target = detail::log(head.weight(target));
    const float log_total = detail::log(head.weight(victim) + head.weight(target));
    const float victim_lacks = log_missing(head, victim), target_lacks = log_missing(head, target);
    for (Index g = 0; g < head.shape().group_size; ++g) {
      const float before = head.stat(g, target) - target_lacks;
      const float both =
          detail::log_add(log_victim + (head.stat(g, victim) - victim_lacks), log_target + before);
      head.stat(g, target) += both - log_total - before;
    }
  }

 private:
  /// By how much the entry's averages fall short in logarithms, as they have few queries.
  template <class Head, class Slot>
  TERSEKV_HD static auto log_missing(const Head& head, Slot slot) {
    using Float = std::remove_cvref_t<decltype(head.stat(0, slot))>;
    const Index group = head.shape().group_size;
    return detail::log_missing<Float>(head.reg(group + head.head_dim()),
                                      head.int_stat(group, slot));
  }
};

}  // namespace tersekv
