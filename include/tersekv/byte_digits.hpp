// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tersekv/config.hpp"
#include "tersekv/simd.hpp"

// Floats in two digits of base 256, for exact products with bytes: of a run of numbers, each is
// rounded to a whole multiple of a unit that is 2^-15 of the largest (2^-16 where none is
// negative). A byte rounds away 256 times as much. Processors multiply and add up four bytes at
// once, several times as many as floats.
//
// The digits of four numbers lie together, 16 bytes: their lower digits, their upper ones, and
// eight bytes of no meaning. So n numbers take the room of n floats.

namespace tersekv::detail {

inline constexpr int kDigits = 2;
/// Below, a unit would be no normal float, and soon its inverse none at all.
inline constexpr float kLeastDigits = 1e-33f;
inline constexpr Index kDigitBytes = 16;  ///< of four numbers

/// The largest magnitude of x[0, n), n whole vectors.
inline float largest_magnitude(const float* x, Index n) {
  simd::Floats most = {};
  for (Index i = 0; i < n; i += simd::kLanes) {
    const simd::Floats v = simd::load(x + i);
    most = simd::max(most, simd::max(v, -v));
  }
  return simd::max(most);
}

/// Numbers of either sign in signed digits: f(i, lower digits, upper digits) for those from x[i]
/// on. Returns the unit; where all is below kLeastDigits, digits are 0. n is whole vectors. O(n).
template <class F>
inline float signed_digits(const float* x, Index n, F&& f) {
  constexpr float most = 127.0f * 256.0f;
  const float size = largest_magnitude(x, n), inverse = size < kLeastDigits ? 0.0f : most / size;
  for (Index i = 0; i < n; i += simd::kLanes) {
    const simd::Floats scaled = simd::round(simd::load(x + i) * inverse);
    const simd::Ints whole = __builtin_convertvector(scaled, simd::Ints);
    const simd::Ints lower = ((whole + 128) & 255) - 128;
    f(i, lower, (whole - lower) >> 8);
  }
  return size / most;
}
/// Numbers from 0 to `size`, the largest of them, in unsigned digits: f(i, numbers of two digits);
/// otherwise the same.
template <class F>
inline float unsigned_digits(const float* x, Index n, float size, F&& f) {
  constexpr float most = 255.0f * 256.0f;
  const float inverse = size < kLeastDigits ? 0.0f : most / size;
  for (Index i = 0; i < n; i += simd::kLanes) {
    const simd::Floats scaled = simd::round(simd::load(x + i) * inverse);
    f(i, __builtin_convertvector(scaled, simd::Ints));
  }
  return size / most;
}

/// Signed digits as they lie together; `sums` are those of the digits, each kind by itself. x [n]
/// and digits (room for n floats) may be the same memory.
inline float to_signed_digits(const float* x, Index n, float* digits,
                              std::int32_t (&sums)[kDigits]) {
  simd::Ints total[kDigits] = {};
  const float unit = signed_digits(x, n, [&](Index i, simd::Ints lower, simd::Ints upper) {
    total[0] += lower;
    total[1] += upper;
    const simd::Ints packed = (lower & 255) | (upper & 255) << 8;
    const simd::Ints digit_major = simd::transpose_bytes(packed);
    std::memcpy(digits + i, &digit_major, sizeof digit_major);
  });
  TERSEKV_HOST_UNROLL for (int c = 0; c < kDigits; ++c) {
    sums[c] = 0;
    for (int lane = 0; lane < simd::kLanes; ++lane) sums[c] += total[c][lane];
  }
  return unit;
}
/// Unsigned ones.
inline float to_unsigned_digits(const float* x, Index n, float size, float* digits) {
  return unsigned_digits(x, n, size, [&](Index i, simd::Ints whole) {
    const simd::Ints digit_major = simd::transpose_bytes(whole);
    std::memcpy(digits + i, &digit_major, sizeof digit_major);
  });
}

/// What two sums of products of digits stand for, in units.
inline simd::Floats from_digit_sums(simd::Ints lower, simd::Ints upper) {
  const auto wide = [](simd::Ints x) { return __builtin_convertvector(x, simd::Floats); };
  // Or -ffast-math would multiply each by what comes after, and in some blocks only.
  return simd::keep_order(wide(upper) * 256.0f + wide(lower));
}

}  // namespace tersekv::detail
