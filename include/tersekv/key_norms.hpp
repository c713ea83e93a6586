// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv {

/// Similarity of one entry's key to all others, with the keys' squared norms kept in a column of
/// the statistics: the square of the cosine, with the cosine's sign, which orders entries as the
/// cosine does and needs no root. A zero key, or one below 1e-15, is similar to nothing (0). Equal
/// keys are exactly as similar as can be (1), and a pair's similarity is the same bits from either
/// side (up to rounding where keys are stored with a scale).
struct KeyNorms {
  Index column = 0;  ///< |k|^2

  /// Recomputes the norms of `count` keys that are new or changed, by the code that works out the
  /// products they will be compared with. O(count head_dim).
  template <class Team, class Head>
  TERSEKV_HD void update(Team& team, const Head& head, Index first, Index count) const {
    team.for_each_square(head, first, count,
                         [&](Index slot, float square) { head.stat(column, slot) = square; });
  }

  /// The similarity of two keys with such a product and such squared norms.
  TERSEKV_HD static float similarity(float product, float own, float other) {
    // In double precision nothing overflows, and -ffast-math has no estimate for the division.
    const double dot = static_cast<double>(product);
    const double norms = static_cast<double>(own) * static_cast<double>(other);
    const auto square = static_cast<float>(dot * (dot < 0 ? -dot : dot) / norms);
    const float most = square < 1.0f ? square : 1.0f;  // parallel keys of other lengths round
    return detail::choose(detail::lower(own, other) > kZero, most, 0.0f);
  }
  /// No less than that, and quick, of floats or vectors. `inverse`: 1 / own. Floats do: of
  /// quotients of keys in range only those of similarities below 1e-12 underflow.
  template <class Float>
  TERSEKV_HD static Float similarity_at_most(Float product, float inverse, Float other) {
    // In this order, lest small numbers be multiplied first and vanish.
    const Float one = detail::LaneTraits<Float>::keep_order(product * inverse);
    const Float square = one * (detail::magnitude(product) / other);
    const Float most = square + (detail::magnitude(square) * 4e-6f + 1e-12f);  // rounding
    return detail::choose(other > kZero, most, Float{});
  }

  /// The head's scratch floats, filled with the product of every entry's key with that of `slot`.
  /// One pass over the keys, O(n head_dim).
  template <class Team, class Head>
  TERSEKV_HD float* products(Team& team, const Head& head, Index slot) const {
    float* out = head.scratch().floats;
    team.dot(head, key_of(team, head, slot), head.length(), out);
    return out;
  }
  /// The same with the similarities.
  template <class Team, class Head>
  TERSEKV_HD const float* similarities(Team& team, const Head& head, Index slot) const {
    float* out = products(team, head, slot);
    const float own = head.stat(column, slot);
    team.for_each_entry(detail::asking_for<Team>(head, {.first = column, .last = column + 1}),
                        head.length(),
                        [&](auto i) { out[i] = similarity(out[i], own, head.stat(column, i)); });
    return out;
  }
  /// The entry whose key is the most similar to that of `slot`, of those that are `eligible`, or
  /// -1. One pass over the keys.
  template <class Team, class Head, class Eligible>
  TERSEKV_HD Index most_similar(Team& team, const Head& head, Index slot,
                                const Eligible& eligible) const {
    const float* dots = products(team, head, slot);
    const float own = head.stat(column, slot);
    const float inverse = own > kZero ? 1.0f / own : 0.0f;
    return team.argmin_bounded(
        detail::asking_for<Team>(head, {.positions = true, .first = column, .last = column + 1}),
        head.length(), detail::of_vectors_if<detail::kOfVectors<Eligible>>([&](auto i) {
          return detail::both(detail::is_not(i, slot), eligible(i));
        }),
        detail::OfVectors{[&](auto i) {
          return -similarity_at_most(element_at(dots, i), inverse, head.stat(column, i));
        }},
        [&](auto i) { return -similarity(dots[i], own, head.stat(column, i)); });
  }

 private:
  static constexpr float kZero = 1e-30f;  // squared norm of a key that counts as zero
};

}  // namespace tersekv
