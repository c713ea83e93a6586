// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// A whole number from -127 to 127; times the scale that all elements of its key, or of its value,
/// share, the number that is stored. Of storage only: a quarter of float's bytes, and 4 for a
/// scale.
/// In attention a query's elements count as multiples of 2^-15 of its largest against such keys,
/// and the shares of a page's values as multiples of 2^-16 of the largest: 1/256 of what a byte
/// loses.
struct Int8 {
  std::int8_t bits = 0;
};

TERSEKV_HD inline float to_float(Int8 x) { return static_cast<float>(x.bits); }

template <>
struct Codec<Int8> {
  static constexpr const char* name = "int8";
  static constexpr bool scaled = true;
  static constexpr Index pack = 4;  // what processors multiply and add up at once
  static constexpr float max_magnitude = kMaxMagnitude;
};

/// Rounds row[0, n), calls store(j, rounded) for each and returns their scale, max |row| / 127:
/// every element is off by half of it at most. But a row of numbers below 1e-27 becomes zeros.
/// Overwrites the row. O(n).
template <class Store>
TERSEKV_HD float to_int8(float* row, Index n, Store&& store) {
  // As integers, positive floats are in the same order, and the loop is one of vectors.
  std::int32_t bits = 0;
  for (Index j = 0; j < n; ++j) {
    const std::int32_t magnitude = detail::bit_copy<std::int32_t>(row[j]) & 0x7fffffff;
    bits = magnitude > bits ? magnitude : bits;
  }
  const float most = detail::bit_copy<float>(bits);
  const float inverse = most < 1e-27f ? 0.0f : 127.0f / most;
  for (Index j = 0; j < n; ++j) {
    const float x = row[j] * inverse;
    row[j] = detail::bit_copy<float>(static_cast<std::int32_t>(x + (x < 0 ? -0.5f : 0.5f)));
  }
  for (Index j = 0; j < n; ++j) {
    store(j, Int8{static_cast<std::int8_t>(detail::bit_copy<std::int32_t>(row[j]))});
  }
  return inverse == 0.0f ? 0.0f : most / 127.0f;
}

}  // namespace tersekv
