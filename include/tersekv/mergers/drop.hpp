// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// Victims are lost.
struct Drop : MergerBase {
  /// What becomes of the entries in the slots `victims[0, count)`, in the order in which they
  /// leave. Returns how many of the list, in `victims`, are to be removed.
  template <class Team, class Head, class Scorer, class Eligible>
  TERSEKV_HD Index retire(Team& team, const Head& head, const Scorer&, std::int32_t* /*victims*/,
                          Index count, const Eligible&, Index /*column*/) const {
    team.once([&] { head.state().counts.evictions += count; });
    return count;
  }
};

}  // namespace tersekv
