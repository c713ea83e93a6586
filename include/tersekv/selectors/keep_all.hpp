// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// Nobody leaves.
struct KeepAll : SelectorBase {
  template <class Team, class Head, class Scorer, class Merger>
  TERSEKV_HD void compress(Team&, const Head&, const Scorer&, const Merger&, Index, Index) const {}
};

}  // namespace tersekv
