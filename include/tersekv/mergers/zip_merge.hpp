// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/key_norms.hpp"
#include "tersekv/mergers/key_rule.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/scorers/predicted_mass.hpp"

namespace tersekv {

/// KeepKV's zero-inference-perturbation merge of entry e into c, in a form that cannot overflow.
/// With votes p (the weights) and shares pi, the softmax of the predicted log-masses (for one query
/// head, of ln p + l):
///
///   v = pi_e v_e + pi_c v_c,   p = p_e + p_c,   the later position,   k by the KeyRule
///
/// Without a selector that names both, the victim's carrier is the unprotected entry with the most
/// similar key (cosine). Needs the scorer PredictedMass. KeepKV, section 4.
struct ZipMerge : MergerBase {
  static constexpr bool uses_weights = true;
  static constexpr bool changes_scores = true;
  KeyRule key_rule = KeyRule::mean;
  bool operator==(const ZipMerge&) const = default;

  TERSEKV_HD Index statistics(const Shape&) const { return 1; }  // |k|^2
  float alpha() const { return 1.0f; }
  Index spare() const { return 1; }
  TERSEKV_HD KeyNorms norms(Index column) const { return {column}; }

  template <class Team, class Head>
  TERSEKV_HD void append(Team& team, const Head& head, Index first, Index count,
                         Index column) const {
    norms(column).update(team, head, first, count);
  }

  /// As `Drop::retire`, for one victim at a time. O(n head_dim).
  template <class Team, class Head, class Eligible>
  TERSEKV_HD Index retire(Team& team, const Head& head, const PredictedMass& scorer,
                          std::int32_t* victims, Index count, const Eligible& eligible,
                          Index column) const {
    for (Index a = 0; a < count; ++a) {
      const Index victim = victims[a];
      const Index target = norms(column).most_similar(team, head, victim, eligible);
      if (target < 0) {
        team.once([&] { ++head.state().counts.evictions; });
      } else {
        merge(team, head, scorer, victim, target, column);
      }
    }
    return count;
  }

  /// Merges `victim` into `target`; the victim is then to be removed. O(head_dim).
  template <class Team, class Head>
  TERSEKV_HD void merge(Team& team, const Head& head, const PredictedMass& scorer, Index victim,
                        Index target, Index column) const {
    const float lead = scorer.log_mass(head, target) - scorer.log_mass(head, victim);
    // The smaller share first, so that nothing rests on 1 / infinity.
    const float ratio = detail::exp_of_negative(lead > 0 ? -lead : lead);
    const float small = ratio / (1.0f + ratio), large = 1.0f / (1.0f + ratio);
    const float share_e = lead > 0 ? small : large, share_c = lead > 0 ? large : small;
    const auto key = detail::merged_key(key_rule, head, scorer, victim, target, share_e, share_c);
    team.write_key(head, target, [&](Index j) {
      const float k = key.share_e * head.key(victim, j) + key.share_c * head.key(target, j);
      return head.within_key(k - key.along_query * scorer.mean_query(head, j));
    });
    team.write_value(head, target, [&](Index j) {
      return share_e * head.value(victim, j) + share_c * head.value(target, j);
    });
    team.once([&] {
      scorer.merge(head, victim, target);
      head.set_weight(target, head.weight(victim) + head.weight(target));
      if (head.position(victim) > head.position(target)) {
        head.set_position(target, head.position(victim));
      }
      ++head.state().counts.merges;
    });
    norms(column).update(team, head, target, 1);
  }
};

}  // namespace tersekv
