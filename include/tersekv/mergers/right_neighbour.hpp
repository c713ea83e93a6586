// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// The victim's value is merged into its right neighbour, the live entry with the next higher
/// position, weighted by their scores s (below 0: 0); its key is dropped, the neighbour's
/// statistics stay:
///
///   v_n <- (s_e v_e + s_n v_n) / (s_e + s_n), the plain mean where both scores are 0
///
/// WeightedKV, section IV. O(n) for one victim, O(n log n) for many at once, and O(head_dim) each.
/// A victim with nobody to its right is lost.
struct RightNeighbour : MergerBase {
  /// Four sinks, a recent token and one that may leave.
  void validate(const Shape&, Index budget) const {
    detail::require(budget >= 6, "budget", "at least 6", budget);
  }

  template <class Team, class Head, class Scorer, class Eligible>
  TERSEKV_HD Index retire(Team& team, const Head& head, const Scorer& scorer, std::int32_t* victims,
                          Index count, const Eligible&, Index /*column*/) const {
    std::int32_t* targets = victims + head.length();
    if (count == 1) {
      const auto from = static_cast<std::int32_t>(head.position(victims[0]));
      const Index target = team.argmin(
          detail::near_if<Team>(head), head.length(),
          detail::OfVectors{[&](auto i) { return head.position(i) > from; }},
          // Far positions may round to the same float; then they are compared as they are.
          detail::OfVectors{[&](auto i) { return detail::as_floats(head.position(i) - from); }});
      team.once([&] { targets[0] = static_cast<std::int32_t>(target); });
    } else {
      find_targets(team, head, victims, count, targets);
    }
    for (Index a = 0; a < count; ++a) {
      if (targets[a] < 0) {
        team.once([&] { ++head.state().counts.evictions; });
      } else {
        fold(team, head, scorer, victims[a], targets[a]);
      }
    }
    return count;
  }

 private:
  /// Neighbours of victims that leave one after the other: a victim may be the neighbour of one
  /// before it, but not of one after it.
  template <class Team, class Head>
  TERSEKV_HD static void find_targets(Team& team, const Head& head, const std::int32_t* victims,
                                      Index count, std::int32_t* targets) {
    const Index n = head.length();
    std::int32_t* order = targets + n;  // slots by position
    std::int32_t* rank = order + n;     // their inverse
    team.for_each(n, [&](Index i) { order[i] = static_cast<std::int32_t>(i); });
    team.sort(order, n,
              [&](std::int32_t a, std::int32_t b) { return head.position(a) < head.position(b); });
    team.for_each(n, [&](Index r) { rank[order[r]] = static_cast<std::int32_t>(r); });
    team.once([&] {
      // A rank whose entry has left holds -1 - (a later rank to look at instead).
      for (Index a = 0; a < count; ++a) {
        const Index left = rank[victims[a]];
        Index at = left + 1;
        while (at < n && order[at] < 0) at = -1 - order[at];
        targets[a] = at < n ? order[at] : -1;
        for (Index r = left + 1; r < at;) {  // shorten the way for those who come after
          const Index next = -1 - order[r];
          order[r] = static_cast<std::int32_t>(-1 - at);
          r = next;
        }
        order[left] = static_cast<std::int32_t>(-1 - at);
      }
    });
  }

  template <class Team, class Head, class Scorer>
  TERSEKV_HD static void fold(Team& team, const Head& head, const Scorer& scorer, Index victim,
                              Index target) {
    const auto score = [&](Index i) {
      const float s = scorer.score(head, i);
      return s > 0 ? s : 0.0f;
    };
    const float s_e = score(victim), s_n = score(target);
    const float total = s_e + s_n;
    const float share = total > 0 ? s_e / total : 0.5f;
    team.write_value(head, target, [&](Index j) {
      return share * head.value(victim, j) + (1 - share) * head.value(target, j);
    });
    team.once([&] { ++head.state().counts.merges; });
  }
};

}  // namespace tersekv
