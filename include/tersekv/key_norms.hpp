// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// Similarity of one entry's key to all others, with the keys' squared norms kept in a column of
/// the statistics: the square of the cosine, with the cosine's sign, which orders entries as the
/// cosine does and needs no root. A zero key, or one below 1e-15, is similar to nothing (0). Equal
/// keys are exactly as similar as can be (1), and a pair's similarity is the same bits from either
/// side (up to rounding where keys are stored with a scale).
struct KeyNorms {
  Index column = 0;  ///< |k|^2

  /// Recomputes the norm of a key that is new or changed, by the code that works out the products
  /// it will be compared with. O(head_dim).
  template <class Team, class Head>
  TERSEKV_HD void update(Team& team, const Head& head, Index slot) const {
    const float square = team.dot_one(head, slot, key_of(team, head, slot), head.scratch().floats);
    team.once([&] { head.stat(column, slot) = square; });
  }

  /// The head's scratch floats, filled with the similarity of every entry's key to that of `slot`.
  /// One pass over the keys, O(n head_dim).
  template <class Team, class Head>
  TERSEKV_HD const float* similarities(Team& team, const Head& head, Index slot) const {
    float* out = head.scratch().floats;
    team.dot(head, key_of(team, head, slot), head.length(), out);
    const float own = head.stat(column, slot);
    team.for_each_entry(head, head.length(), [&](auto i) {
      const float other = head.stat(column, i);
      const float low = own < other ? own : other;
      // In double precision nothing overflows, and -ffast-math has no estimate for the division.
      const double product = static_cast<double>(out[i]);
      const double norms = static_cast<double>(own) * static_cast<double>(other);
      const auto square = static_cast<float>(product * (product < 0 ? -product : product) / norms);
      const float most = square < 1.0f ? square : 1.0f;  // parallel keys of other lengths round
      out[i] = detail::choose(low > 1e-30f, most, 0.0f);
    });
    return out;
  }
};

}  // namespace tersekv
