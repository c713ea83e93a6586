// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// s_i = accumulated attention / number of queries that saw the entry; 0 before any did. O(n) per
/// query.
struct MeanAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  TERSEKV_HD Index statistics(const Shape&) const { return 2; }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    team.for_each_entry(head, row.visible, [&](auto i) {
      head.stat(0, i) += row.attention[i];
      head.int_stat(1, i) += 1;
    });
  }
  template <class Head, class Slot>
  TERSEKV_HD float score(const Head& head, Slot slot) const {
    const int queries = head.int_stat(1, slot);
    return head.stat(0, slot) / static_cast<float>(queries > 1 ? queries : 1);
  }
};

}  // namespace tersekv
