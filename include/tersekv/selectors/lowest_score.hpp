// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// The lowest scores leave until the head is within its budget; ties: the lower position. Several
/// victims are chosen at once, or one at a time where merging changes scores. O(n) for one victim,
/// O(n log k) for k at once, O(k n) and what the merger takes for k one at a time.
struct LowestScore : SelectorBase {
  static constexpr bool needs_budget = true;
  Protection protection = {};     ///< unless told otherwise the latest half of the budget
  Index interval = 1;             ///< compress after this many tokens, >= 1
  Index uncompressed_layers = 0;  ///< layers below this keep everything
  bool prompts_only = false;      ///< compress only where tokens came several at a time; interval 1
  bool operator==(const LowestScore&) const = default;

  void validate(const Shape& shape, Index budget, Index set_aside) const {
    protection.validate();
    detail::require_count("interval", interval, 1);
    detail::require(!prompts_only || interval == 1, "interval", "1 with prompts_only", interval);
    detail::require_count("uncompressed_layers", uncompressed_layers, 0);
    if (shape.layer >= uncompressed_layers) protection.validate_budget(budget, set_aside);
  }
  Index max_length(const Shape& shape, Index budget, Index chunk) const {
    const bool grows = prompts_only && chunk == 1;
    if (grows || shape.layer < uncompressed_layers) return kUnlimited;
    return budget > kUnlimited - interval ? kUnlimited : budget + interval - 1;
  }

  template <class Team, class Head, class Scorer, class Merger>
  TERSEKV_HD void compress(Team& team, const Head& head, const Scorer& scorer, const Merger& merger,
                           Index column, Index merger_column) const {
    if (head.shape().layer < uncompressed_layers || head.state().waiting < interval) return;
    team.once([&] { head.state().waiting = 0; });
    const Index excess =
        head.length() - head.state().pinned - (head.budget() - merger.reserved(head.budget()));
    if (excess <= 0 || (prompts_only && head.state().prompt == 0)) return;
    scorer.prepare(team, head);
    const auto eligible =
        detail::OfVectors{protection.unprotected(head, protection.recent_of(head.budget()))};
    const auto score = detail::of_vectors_if<detail::ScoresVectors<Scorer, Team, Head>>(
        [&](auto i) { return scorer.score(head, i); });
    std::int32_t* victims = head.scratch().slots;
    const Index at_once = Merger::changes_scores ? 1 : excess;
    for (Index left = excess; left > 0; left -= at_once) {
      if constexpr (Merger::changes_scores && detail::BoundsScores<Scorer, Head>) {
        const auto least = detail::of_vectors_if<detail::BoundsVectors<Scorer, Team, Head>>(
            [&](auto i) { return scorer.least_score(head, i); });
        const auto lowest = [&](const auto&... rough) {
          return team.argmin_bounded(
              detail::asking_for<Team>(head, {.weights = true, .positions = true, .last = column}),
              head.length(), eligible, least, score, rough...);
        };
        Index victim;
        if constexpr (detail::BoundsRoughly<Scorer, Team, Head>) {
          victim = lowest(detail::OfVectors{[&](auto i) { return scorer.rough_score(head, i); }});
        } else {
          victim = lowest();
        }
        team.once([&] { victims[0] = static_cast<std::int32_t>(victim); });
      } else {
        // Who observes logits asks for columns of its own alone.
        const auto& near = detail::near_if<Team, Scorer::observes == Observes::attention>(head);
        team.smallest(at_once, near, head.length(), eligible, score, victims);
      }
      const Index leaving =
          merger.retire(team, head, scorer, victims, at_once, eligible, merger_column);
      remove_entries(team, head, victims, leaving);
    }
  }
};

}  // namespace tersekv
