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

  /// `most_parts`: of the heads that would be left over. They come in as few parts as take the
  /// least time, and whole where parts take as long.
  static TaskPlan of(Index heads, Index workers, Index most_parts) {
    const Index left = heads % workers;
    Index best = 1, rounds = 1;  // time: rounds / best of a head's
    for (Index parts = 2; left > 0 && parts <= std::min(most_parts, workers); ++parts) {
      const Index needed = (left * parts + workers - 1) / workers;
      if (needed * best >= rounds * parts) continue;
      best = parts;
      rounds = needed;
    }
    return best == 1 ? TaskPlan{heads, 0, 1} : TaskPlan{heads - left, left, best};
  }
  /// Heads that may be left over, at most, of any number of sequences with `heads` each.
  static Index most_split(Index heads, Index workers) { return workers - std::gcd(heads, workers); }

  Index tasks() const { return whole + split * parts; }
};

}  // namespace tersekv::detail
