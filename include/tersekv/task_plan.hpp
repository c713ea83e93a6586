// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>

#include "tersekv/config.hpp"

namespace tersekv::detail {

/// How the heads of a call are shared out among workers: whole, as many as keep all workers equally
/// busy, then those left over, each of them in parts.
struct TaskPlan {
  Index whole = 0, split = 0, parts = 1;

  /// `most_parts`: of the heads that would be left over.
  static TaskPlan of(Index heads, Index workers, Index most_parts) {
    const Index left = heads % workers;
    if (left == 0 || most_parts < 2) return {heads, 0, 1};
    return {heads - left, left, std::min(most_parts, workers / std::gcd(left, workers))};
  }
  /// Heads that may be left over, at most, of any number of sequences with `heads` each.
  static Index most_split(Index heads, Index workers) { return workers - std::gcd(heads, workers); }

  Index tasks() const { return whole + split * parts; }
};

}  // namespace tersekv::detail
