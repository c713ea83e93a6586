// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/policy.hpp"

namespace tersekv {

/// s_i = accumulated attention / number of queries that saw the entry; 0 before any did. O(n) per
/// query.
///
/// That number is the head's queries less those that the entry missed: of queries that see all
/// entries, as a single token's does, only the sums are written.
struct MeanAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  TERSEKV_HD Index statistics(const Shape&) const { return 2; }  // the sum, queries missed
  Index registers(const Shape&) const { return 1; }              // the head's queries so far

  template <class Team, class Head>
  TERSEKV_HD void append(Team& team, const Head& head, Index first, Index count,
                         const float* /*token_scores*/) const {
    const std::int32_t queries = head.int_reg(0);
    team.for_each(count, [&](Index i) { head.int_stat(kMissed, first + i) = queries; });
  }
  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    team.for_each_vector(
        head, row.visible,
        [&](auto i) { return head.stat(kSum, i) + element_at(row.attention, i); },
        [&](auto i, auto sum) { head.set_stat(kSum, i, sum); });
    if (row.visible < head.length()) {
      team.for_each_vector(head, head.length(), [&](auto i) {
        head.set_stat(kMissed, i, head.int_stat(kMissed, i) + detail::from_slot(i, row.visible));
      });
    }
    team.once([&] { head.set_int_reg(0, head.int_reg(0) + 1); });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    const auto queries = detail::as_floats(head.int_reg(0) - head.int_stat(kMissed, slot));
    const auto one = decltype(queries){} + 1.0f;
    return head.stat(kSum, slot) / detail::higher(queries, one);
  }

 private:
  static constexpr Index kSum = 0, kMissed = 1;
};

}  // namespace tersekv
