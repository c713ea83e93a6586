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
    team.for_each_vector(
        head, row.visible,
        [&](auto i) {
          return detail::Both{head.stat(0, i) + element_at(row.attention, i),
                              head.int_stat(1, i) + 1};
        },
        [&](auto i, const auto& sum_and_queries) {
          head.set_stat(0, i, sum_and_queries.first);
          head.set_stat(1, i, sum_and_queries.second);
        });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    auto queries = detail::as_floats(head.int_stat(1, slot));
    const auto one = decltype(queries){} + 1.0f;
    return head.stat(0, slot) / detail::higher(queries, one);
  }
};

}  // namespace tersekv
