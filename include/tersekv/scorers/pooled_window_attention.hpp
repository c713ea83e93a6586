// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/policy.hpp"

namespace tersekv {

/// The attention of a prompt's last `window` queries, summed, then averaged over `kernel`
/// neighbours by position; what lies beyond the ends counts as 0 and the divisor stays `kernel`.
/// The window's own entries take no part and score 0, the lowest: a selector is to protect them
/// (`protection.recent` at least `window`, as in make_snapkv), or they leave first. A token that
/// comes alone is not observed; of a prompt that several calls bring before one compression, the
/// queries of the last call of more than one token count. O(n) per query, O(n log n + kernel n) per
/// prompt.
struct PooledWindowAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  Index window = 32;  ///< >= 1
  Index kernel = 7;   ///< odd
  bool operator==(const PooledWindowAttention&) const = default;

  void validate(const Shape&) const {
    detail::require_count("window", window, 1);
    detail::require_count("kernel", kernel, 1);
    detail::require(kernel % 2 == 1, "kernel", "an odd number", kernel);
  }
  TERSEKV_HD Index statistics(const Shape&) const { return 2; }  // sum, pooled
  Index observed_rows(Index rows) const { return rows > 1 ? std::min(rows, window) : 0; }

  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    // A prompt's window starts afresh; what the last chunk's queries thought is gone.
    if (row.first) team.for_each_entry(head, head.length(), [&](auto i) { head.stat(0, i) = 0; });
    team.for_each_entry(head, row.visible, [&](auto i) { head.stat(0, i) += row.attention[i]; });
  }
  template <class Team, class Head>
  TERSEKV_HD void prepare(Team& team, const Head& head) const {
    std::int32_t* order = head.scratch().slots;
    const Index from = head.tokens_seen() - window;
    const Index count = team.collect(
        head, head.length(), [&](auto i) { return head.position(i) < from; }, order);
    team.sort(order, count,
              [&](std::int32_t a, std::int32_t b) { return head.position(a) < head.position(b); });
    team.for_each(count, [&](Index i) {
      float sum = 0;
      const Index before = i < kernel / 2 ? i : kernel / 2;
      const Index after = count - 1 - i < kernel / 2 ? count - 1 - i : kernel / 2;
      for (Index j = i - before; j <= i + after; ++j) sum += head.stat(0, order[j]);
      head.stat(1, order[i]) = sum / static_cast<float>(kernel);
    });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    return head.stat(1, slot);
  }
};

}  // namespace tersekv
