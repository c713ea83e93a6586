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

/// The power of two that is nearest to e^x, as its logarithm.
inline Floats power_of(Floats x) { return round(x * 1.44269504088896341f); }

/// e^x 2^-k for whole k >= power_of(x), relative error below 3e-7 for |x| < 1e4 and, beyond, below
/// what the rounding of x does, also under `-ffast-math`; no less than 2^-125.5. The bits before
/// the exponent are those of e^x, so results for different k are exact multiples of each other.
inline Floats exp_over(Floats x, Floats k) {
  // x = n ln 2 + r with |r| <= ln(2)/2; beyond 2^20 or so, where floats are too far apart for that,
  // any such r will do.
  const Floats n = power_of(x);
  Floats r = keep_order(x - n * 0.693359375f) + n * 2.12194440e-4f;
  r = max(min(r, broadcast(0.35f)), broadcast(-0.35f));
  Floats p = r * (1.0f / 5040) + 1.0f / 720;  // as detail::exp_in_range
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Ints shift = __builtin_convertvector(max(n - k, broadcast(-125.0f)), Ints);
  return std::bit_cast<Floats>(std::bit_cast<Ints>(p) + (shift << 23));
}

/// 2^k for whole k <= 127; what is below 2^-125 is 2^-125.
inline Floats exp2(Floats k) {
  const Ints n = __builtin_convertvector(max(k, broadcast(-125.0f)), Ints);
  return std::bit_cast<Floats>((n + 127) << 23);
}

}  // namespace tersekv::simd
