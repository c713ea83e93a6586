// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "tersekv/policy.hpp"

namespace tersekv {

/// Whoever scores below `threshold` leaves, once it is no longer among the protected, by default
/// the latest 128. No budget: how much is kept depends on the input. O(n + k log k) for k who
/// leave.
struct BelowThreshold : SelectorBase {
  float threshold = 0.0f;
  Protection protection = {.recent = 128};  ///< a number: kAuto would be a share of a budget
  bool operator==(const BelowThreshold&) const = default;

  void validate(const Shape&, Index, Index set_aside) const {
    detail::require_between("threshold", threshold, -kMaxMagnitude, kMaxMagnitude);
    protection.validate();
    detail::require_count("window (protection.recent)", protection.recent, 0);
    // A merger whose slots are a share of the budget has no share where there is none.
    detail::require(set_aside <= kMostTokens, "residual", "a number, without a budget", kAuto);
  }

  template <class Team, class Head, class Scorer, class Merger>
  TERSEKV_HD void compress(Team& team, const Head& head, const Scorer& scorer, const Merger& merger,
                           Index /*column*/, Index merger_column) const {
    const auto eligible = detail::OfVectors{protection.unprotected(head, protection.recent)};
    scorer.prepare(team, head);
    const auto leaves =
        detail::of_vectors_if<detail::ScoresVectors<Scorer, Team, Head>>([&](auto i) {
          const auto low = scorer.score(head, i) < threshold;
          if constexpr (!std::same_as<decltype(low), const bool>) {
            if (!simd::any(low)) return low;  // as mostly; then no position need be read
          }
          return detail::both(eligible(i), low);
        });
    std::int32_t* victims = head.scratch().slots;
    Index found = 0;
    do {
      if constexpr (Merger::changes_scores) {  // one at a time, the lowest first
        const Index lowest =
            team.argmin(head, head.length(), leaves, [&](auto i) { return scorer.score(head, i); });
        if (lowest < 0) return;
        found = 1;
        team.once([&] { victims[0] = static_cast<std::int32_t>(lowest); });
      } else {
        found = team.collect(head, head.length(), leaves, victims);
        if (found == 0) return;
        team.sort(victims, found, [&](std::int32_t a, std::int32_t b) {  // the lowest first
          const float score_a = scorer.score(head, Index{a}),
                      score_b = scorer.score(head, Index{b});
          return score_a < score_b || (score_a == score_b && head.position(a) < head.position(b));
        });
      }
      const Index leaving =
          merger.retire(team, head, scorer, victims, found, eligible, merger_column);
      remove_entries(team, head, victims, leaving);
    } while (Merger::changes_scores);
  }
};

}  // namespace tersekv
