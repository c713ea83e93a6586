// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// s_i = sum of the attention A_i of every query since the entry appeared. O(n) per query.
struct CumulativeAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  TERSEKV_HD Index statistics(const Shape&) const { return 1; }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    team.for_each_vector(
        head, row.visible, [&](auto i) { return head.stat(0, i) + element_at(row.attention, i); },
        [&](auto i, auto sum) { head.set_stat(0, i, sum); });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    return head.stat(0, slot);
  }
};

}  // namespace tersekv
