// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "tersekv/log_math.hpp"
#include "tersekv/simd.hpp"

// Exponentials and logarithms of vectors; first, what `log_math.hpp` asks about them as about
// floats.

namespace tersekv::detail {

inline simd::Floats as_floats(simd::Ints x) { return __builtin_convertvector(x, simd::Floats); }

template <>
struct LaneTraits<simd::Floats> {
  using Int = simd::Ints;
  static Int truncate(simd::Floats x) { return __builtin_convertvector(x, Int); }
  static simd::Floats to_float(Int x) { return as_floats(x); }
  static simd::Floats higher(simd::Floats a, simd::Floats b) { return simd::max(a, b); }
  static simd::Floats keep_order(simd::Floats x) { return simd::keep_order(x); }
  static void begin() {}
};

}  // namespace tersekv::detail

namespace tersekv::simd {

/// ln x for normal x > 0, as detail::log_of; of any other bits, some number.
inline Floats log(Floats x) {
#if defined(__CUDACC__)  // knows no vectors in what a device may call, as it may detail::log_of
  for (int i = 0; i < kLanes; ++i) x[i] = detail::log_of(x[i]);
  return x;
#else
  return detail::log_of(x);
#endif
}

inline constexpr float kLog2e = 1.44269504088896341f;  ///< logits times this are powers of two
inline constexpr float kLn2 = 0.693147180559945309f;

/// 2^r for |r| <= 1/2, between 0.707 and 1.415; 2^0 is 1. A polynomial fitted to a relative error
/// of 2e-9; rounding makes that 1.2e-7.
inline Floats exp2_of_small(Floats r) {
  Floats p = r * 1.53533620e-4f + 1.33988750e-3f;
  p = p * r + 9.61843692e-3f;
  p = p * r + 5.55033237e-2f;
  p = p * r + 2.40226477e-1f;
  p = p * r + 6.93147182e-1f;
  return p * r + 1.0f;
}

/// A weight as 2^power * factor, with a factor between 0.707 and 1.415.
struct ScaledWeight {
  Floats power, factor;

  /// The weight itself, where it is a normal float.
  Floats value() const {
    const Ints shift = __builtin_convertvector(power, Ints) << 23;
    return std::bit_cast<Floats>(std::bit_cast<Ints>(factor) + shift);
  }
  /// w^alpha for normal w > 0; of other bits, some numbers.
  static ScaledWeight of(Floats w, float alpha) {
    if (alpha == 1.0f) {
      const auto bits = std::bit_cast<Ints>(w) & 0x7fffffff;  // nothing overflows
      const Ints n = (bits - 0x3f3504f3) >> 23;
      return {detail::as_floats(n), std::bit_cast<Floats>(bits - (n << 23))};
    }
    const Floats x = log(w) * (alpha * kLog2e), n = round(x);
    return {n, exp2_of_small(keep_order(x - n))};
  }
};

/// 2^(x - k) for whole k >= x - 1/2, relative error below 1.2e-7 also under `-ffast-math`; no less
/// than 2^-124.5. The bits before the exponent are those of 2^x, so results for different k are
/// exact multiples of each other.
inline Floats exp2_over(Floats x, Floats k) {
  const Floats n = round(x);
  const Floats p = exp2_of_small(keep_order(x - n));
  const Ints shift = __builtin_convertvector(max(n - k, broadcast(-124.0f)), Ints);
  return std::bit_cast<Floats>(std::bit_cast<Ints>(p) + (shift << 23));
}
/// The same times a weight of at least 2^-124; no less than 2^-124.
inline Floats exp2_over(Floats x, Floats k, Floats weight) {
  const Floats n = round(x);
  const Floats p = keep_order(exp2_of_small(keep_order(x - n))) * weight;
  const Ints shift = __builtin_convertvector(max(n - k, broadcast(-250.0f)), Ints);
  const Ints bits = std::bit_cast<Ints>(p) + (shift << 23);  // negative where it is no float
  const Ints least = Ints{} + (3 << 23);
  return std::bit_cast<Floats>(bits > least ? bits : least);
}
/// The same times any weight, for whole k >= x + weight.power - 1/2; no less than 2^-125.01. Where
/// x is so large that k cannot hold a weight beside it, up to 2^41, and what should be above is
/// that: sums of such exponentials and the largest values do not overflow.
inline Floats exp2_over(Floats x, Floats k, const ScaledWeight& weight) {
  const Floats n = round(x);
  const Floats p = keep_order(exp2_of_small(keep_order(x - n))) * weight.factor;
  const Floats over = min(keep_order(n - k) + weight.power, broadcast(40.0f));
  const Ints shift = __builtin_convertvector(max(over, broadcast(-124.0f)), Ints);
  return std::bit_cast<Floats>(std::bit_cast<Ints>(p) + (shift << 23));
}

/// 2^k for whole k <= 127; what is below 2^-125 is 2^-125.
inline Floats exp2(Floats k) {
  const Ints n = __builtin_convertvector(max(k, broadcast(-125.0f)), Ints);
  return std::bit_cast<Floats>((n + 127) << 23);
}

}  // namespace tersekv::simd
