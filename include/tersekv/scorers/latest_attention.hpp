// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// s_i = attention of the latest query. O(n) per query.
struct LatestAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  TERSEKV_HD Index statistics(const Shape&) const { return 1; }
  Index observed_rows(Index rows) const { return rows < 1 ? rows : 1; }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    team.for_each_vector(
        head, row.visible, [&](auto i) { return element_at(row.attention, i); },
        [&](auto i, auto attention) { head.set_stat(0, i, attention); });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    return head.stat(0, slot);
  }
};

}  // namespace tersekv
