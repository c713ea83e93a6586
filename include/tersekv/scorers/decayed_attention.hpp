// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/policy.hpp"

namespace tersekv {

/// s_i <- decay * s_i + A_i at every observed query; of a prompt only the last `window` queries are
/// observed. O(n) per query.
struct DecayedAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  float decay = 0.98f;  ///< in [0, 1]
  Index window = 8;     ///< >= 1
  bool operator==(const DecayedAttention&) const = default;

  void validate(const Shape&) const {
    detail::require_between("decay", decay, 0.0f, 1.0f);
    detail::require_count("window", window, 1);
  }
  TERSEKV_HD Index statistics(const Shape&) const { return 1; }
  Index observed_rows(Index rows) const { return std::min(rows, window); }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    team.for_each_vector(
        head, row.visible,
        [&](auto i) { return decay * head.stat(0, i) + element_at(row.attention, i); },
        [&](auto i, auto sum) { head.set_stat(0, i, sum); });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    return head.stat(0, slot);
  }
};

}  // namespace tersekv
