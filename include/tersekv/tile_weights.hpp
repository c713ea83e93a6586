// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/attention_request.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd_math.hpp"

namespace tersekv::detail {

/// The weights of a tile's entries, to the power of alpha.
struct TileWeights {
  enum Kind { one, plain, scaled };
  Kind kind = one;
  const float* factors = nullptr;  ///< plain: they themselves, from kLeastPlain to kMostPlain
  const float* powers = nullptr;   ///< scaled: they are 2^powers[i] * factors[i]

  /// What exponentials may be multiplied by as it is: they stay far from what a float cannot hold,
  /// and what is lowest is hardly higher for it.
  static constexpr float kLeastPlain = 0x1p-10f, kMostPlain = 0x1p40f;
};

/// Those of entries [start, stop), in whole vectors. `room` [2, kSection].
template <class Head>
TileWeights tile_weights(const Head& head, float alpha, Index start, Index stop, float* room) {
  if (alpha == 0.0f || !head.has_weights()) return {};
  const simd::Floats one = simd::broadcast(1.0f);
  const Index block = block_entries(head.page_size());
  const auto for_each = [&](auto&& f) {
    for (Index at = start; at < stop; at += block) {
      const float* given = head.weight_page(head.page_index(at)) + head.in_page(at);
      for (Index i = at; i < std::min(at + block, stop); i += simd::kLanes) {
        const simd::Floats some = simd::load(given + (i - at));
        // Of dead slots they may be anything.
        f(i - start, i + simd::kLanes > stop ? simd::first_lanes(some, stop - i, one) : some);
      }
    }
  };
  float *powers = room, *factors = room + kSection;
  simd::Floats least = one, most = one;
  for_each([&](Index i, simd::Floats some) {
    simd::store(factors + i, some);
    least = simd::min(least, some);
    most = simd::max(most, some);
  });
  const auto outside = [&](float low, float high) {
    return simd::any_above(most, high) || simd::any_above(-least, -low);
  };
  if (!outside(1.0f, 1.0f)) return {};  // most pages hold tokens as they came
  const bool plain =
      alpha >= 0.0f && alpha <= 1.0f && !outside(TileWeights::kLeastPlain, TileWeights::kMostPlain);
  if (plain && alpha == 1.0f) return {TileWeights::plain, factors};
  for_each([&](Index i, simd::Floats some) {
    const auto scaled = simd::ScaledWeight::of(some, alpha);
    simd::store(powers + i, scaled.power);
    simd::store(factors + i, plain ? scaled.value() : scaled.factor);
  });
  return {plain ? TileWeights::plain : TileWeights::scaled, factors, powers};
}

}  // namespace tersekv::detail
