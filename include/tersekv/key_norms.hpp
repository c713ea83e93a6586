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
  /// That of two entries, given the product of their keys.
  template <class Head>
  TERSEKV_HD float of_pair(const Head& head, Index one, Index other, float product) const {
    return similarity(product, head.stat(column, one), head.stat(column, other));
  }
  /// No less than a similarity, and quick, of floats or vectors. `inverse`: 1 / own. Floats do: of
  /// quotients of keys in range only those of similarities below 1e-12 underflow.
  template <class Float>
  TERSEKV_HD static Float similarity_at_most(Float product, float inverse, Float other) {
    // In this order, lest small numbers be multiplied first and vanish.
    const Float one = detail::LaneTraits<Float>::keep_order(product * inverse);
    const Float square = one * (detail::magnitude(product) / other);
    const Float most = square + (detail::magnitude(square) * 4e-6f + 1e-12f);  // rounding
    return detail::choose(other > kZero, most, Float{});
  }

  /// Row r of the head's scratch rows, `stride` floats each: the product of every entry's key with
  /// that of slots[r], r < rows. One pass over the keys, O(rows n head_dim).
  template <class Team, class Head>
  TERSEKV_HD const float* products(Team& team, const Head& head, const std::int32_t* slots,
                                   Index rows, Index stride) const {
    const Index dim = head.head_dim();
    float *keys = head.scratch().vectors, *out = head.scratch().rows(stride);
    team.for_each(dim, [&](Index j) {
      for (Index r = 0; r < rows; ++r) keys[r * dim + j] = head.key(slots[r], j);
    });
    team.template dot<Scratch::kRows>(head, keys, head.length(), out, rows, stride);
    return out;
  }
  /// The entry whose key is the most similar to that of `slot`, of those that are `eligible`, or
  /// -1, from its products with all.
  template <class Team, class Head, class Eligible>
  TERSEKV_HD Index most_similar(Team& team, const Head& head, Index slot, const float* products,
                                const Eligible& eligible) const {
    const float own = head.stat(column, slot);
    const float inverse = own > kZero ? 1.0f / own : 0.0f;
    return team.argmin_bounded(
        detail::asking_for<Team>(head, {.positions = true, .first = column, .last = column + 1}),
        head.length(), detail::of_vectors_if<detail::kOfVectors<Eligible>>([&](auto i) {
          return detail::both(detail::is_not(i, slot), eligible(i));
        }),
        detail::OfVectors{[&](auto i) {
          return -similarity_at_most(element_at(products, i), inverse, head.stat(column, i));
        }},
        [&](auto i) { return -similarity(products[i], own, head.stat(column, i)); });
  }
  /// The same in one pass over the keys.
  template <class Team, class Head, class Eligible>
  TERSEKV_HD Index most_similar(Team& team, const Head& head, Index slot,
                                const Eligible& eligible) const {
    float* products = head.scratch().floats;
    team.dot(head, key_of(team, head, slot), head.length(), products);
    return most_similar(team, head, slot, products, eligible);
  }

 private:
  static constexpr float kZero = 1e-30f;  // squared norm of a key that counts as zero
};

}  // namespace tersekv
