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

  /// All of a head, or one of the parts it comes in.
  struct Task {
    Index head = 0, part = kAll;
    static constexpr Index kAll = -1;
  };
  /// What task `index` is, where worker w does tasks w, w + workers, ... The parts of a head come
  /// before whole heads, but the last after them. So mostly the same worker is the last to be done
  /// with a head, and does the rest of it: what a policy keeps of it stays in that one's caches.
  /// Whole head h is done by worker h % workers, as where none are shared.
  Task task(Index index, Index workers) const {
    const Index early = split * (parts - 1), at = index - early;
    if (at < 0) return {whole + index / (parts - 1), index % (parts - 1)};
    if (at >= whole) return {at, parts - 1};
    return {at / workers * workers + index % workers};
  }
};

}  // namespace tersekv::detail
