// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// The score that came with the token (`Chunk::token_scores`), for example from a `Surrogate`.
/// Never changes. Observes nothing.
struct TokenScore : ScorerBase {
  static constexpr bool needs_token_scores = true;
  TERSEKV_HD Index statistics(const Shape&) const { return 1; }

  template <class Team, class Head>
  TERSEKV_HD void append(Team& team, const Head& head, Index first, Index count,
                         const float* token_scores) const {
    team.for_each(count, [&](Index i) { head.stat(0, first + i) = token_scores[i]; });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    return head.stat(0, slot);
  }
};

}  // namespace tersekv
