// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "tersekv/element.hpp"
#include "tersekv/simd.hpp"

// Vectors of pairs of BFloat16, a lane's lower and upper half.

namespace tersekv::simd {

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__CUDACC__)
#define TERSEKV_PAIR_PRODUCTS 1
#else
#define TERSEKV_PAIR_PRODUCTS 0
#endif

/// Whether the products of a pair are added up at the pace of one of floats.
inline constexpr bool kFastPairs = TERSEKV_PAIR_PRODUCTS == 1 && kZen != 0;

/// sums + the products of the upper numbers, + the products of the lower ones: each sum rounded, as
/// the processor does it, and products of BFloat16 are exact floats. What is below the normal
/// floats may count as 0.
inline Floats add_pairs(Floats sums, Ints a, Ints b) {
#if TERSEKV_PAIR_PRODUCTS
  return std::bit_cast<Floats>(_mm512_dpbf16_ps(
      std::bit_cast<__m512>(sums), std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b)));
#else
  const auto upper = static_cast<std::int32_t>(0xffff0000u);
  sums = keep_order(sums + std::bit_cast<Floats>(a & upper) * std::bit_cast<Floats>(b & upper));
  return keep_order(sums + std::bit_cast<Floats>(a << 16) * std::bit_cast<Floats>(b << 16));
#endif
}

/// 2 * kLanes pairs of the numbers from `lower` and from `upper` on, in an order of their own;
/// `pairs_in_order` is the way back, for what was worked out from them.
inline void load_pairs(const BFloat16* lower, const BFloat16* upper, Ints* to) {
#if TERSEKV_PAIR_PRODUCTS
  const __m512i a = std::bit_cast<__m512i>(in_register(load_bytes(lower)));
  const __m512i b = std::bit_cast<__m512i>(in_register(load_bytes(upper)));
  to[0] = std::bit_cast<Ints>(_mm512_maskz_unpacklo_epi16(~__mmask32{0}, a, b));
  to[1] = std::bit_cast<Ints>(_mm512_maskz_unpackhi_epi16(~__mmask32{0}, a, b));
#else
  for (int i = 0; i < 2 * kLanes; ++i) {
    to[i / kLanes][i % kLanes] =
        static_cast<std::int32_t>(std::uint32_t{upper[i].bits} << 16 | lower[i].bits);
  }
#endif
}
inline void pairs_in_order([[maybe_unused]] Floats* v) {
#if TERSEKV_PAIR_PRODUCTS
#define TERSEKV_FOURS(i) i, i + 1, i + 2, i + 3, i + 16, i + 17, i + 18, i + 19
  const Floats a = v[0], b = v[1];
  v[0] = __builtin_shufflevector(a, b, TERSEKV_FOURS(0), TERSEKV_FOURS(4));
  v[1] = __builtin_shufflevector(a, b, TERSEKV_FOURS(8), TERSEKV_FOURS(12));
#undef TERSEKV_FOURS
#endif
}

}  // namespace tersekv::simd
