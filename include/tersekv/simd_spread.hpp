// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tersekv/element.hpp"
#include "tersekv/simd.hpp"

// Vectors of elements in an order of their own, in which they are read with the fewest operations.

namespace tersekv::simd {

/// Of each lane the lower half, moved up. By a shuffle where there is one: shifts take turns with
/// products on some processors.
inline Ints lower_up(Ints x) {
#if defined(__AVX512BW__)
  const __m512i from = _mm512_set4_epi32(0x0d0c8080, 0x09088080, 0x05048080, 0x01008080);
  return std::bit_cast<Ints>(
      _mm512_maskz_shuffle_epi8(~std::uint64_t{0}, std::bit_cast<__m512i>(x), from));
#else
  return x << 16;
#endif
}

/// Vectors vectors of elements from p on, in an order of its own: of two vectors of BFloat16, the
/// first takes every other number and the second those between, which costs one operation each.
/// `spread` is the way there and `in_order` the way back, for what is worked out from them.
template <int Vectors, class T>
[[gnu::always_inline]] inline void load_spread(const T* p, Floats* to) {
  constexpr int pairs = std::is_same_v<T, BFloat16> ? Vectors / 2 : 0;
  TERSEKV_HOST_UNROLL for (int v = 0; v < 2 * pairs; v += 2) {
    Ints both;
    std::memcpy(&both, p + v * kLanes, sizeof both);
    both = in_register(both);
    to[v] = in_register(std::bit_cast<Floats>(lower_up(both)));
    to[v + 1] = in_register(std::bit_cast<Floats>(both & static_cast<std::int32_t>(0xffff0000u)));
  }
  TERSEKV_HOST_UNROLL for (int v = 2 * pairs; v < Vectors; ++v) {
    to[v] = in_register(load(p + v * kLanes));
  }
}
template <int Vectors, class T>
[[gnu::always_inline]] inline void spread(Floats* v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    TERSEKV_HOST_UNROLL for (int i = 0; i + 2 <= Vectors; i += 2) {
      const Floats a = v[i], b = v[i + 1];
#define TERSEKV_EVERY_OTHER(from) from, from + 2
#define TERSEKV_FOUR(from) TERSEKV_EVERY_OTHER(from), TERSEKV_EVERY_OTHER(from + 4)
#if defined(__AVX512F__)
      v[i] = __builtin_shufflevector(a, b, TERSEKV_FOUR(0), TERSEKV_FOUR(8), TERSEKV_FOUR(16),
                                     TERSEKV_FOUR(24));
      v[i + 1] = __builtin_shufflevector(a, b, TERSEKV_FOUR(1), TERSEKV_FOUR(9), TERSEKV_FOUR(17),
                                         TERSEKV_FOUR(25));
#elif defined(__AVX__)
      v[i] = __builtin_shufflevector(a, b, TERSEKV_FOUR(0), TERSEKV_FOUR(8));
      v[i + 1] = __builtin_shufflevector(a, b, TERSEKV_FOUR(1), TERSEKV_FOUR(9));
#else
      v[i] = __builtin_shufflevector(a, b, TERSEKV_FOUR(0));
      v[i + 1] = __builtin_shufflevector(a, b, TERSEKV_FOUR(1));
#endif
#undef TERSEKV_FOUR
#undef TERSEKV_EVERY_OTHER
    }
  }
}
template <int Vectors, class T>
[[gnu::always_inline]] inline void in_order(Floats* v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    TERSEKV_HOST_UNROLL for (int i = 0; i + 2 <= Vectors; i += 2) {
      const Floats a = v[i], b = v[i + 1];
#define TERSEKV_TWO(lane) lane, lane + kLanes, lane + 1, lane + 1 + kLanes
#if defined(__AVX512F__)
      v[i] = __builtin_shufflevector(a, b, TERSEKV_TWO(0), TERSEKV_TWO(2), TERSEKV_TWO(4),
                                     TERSEKV_TWO(6));
      v[i + 1] = __builtin_shufflevector(a, b, TERSEKV_TWO(8), TERSEKV_TWO(10), TERSEKV_TWO(12),
                                         TERSEKV_TWO(14));
#elif defined(__AVX__)
      v[i] = __builtin_shufflevector(a, b, TERSEKV_TWO(0), TERSEKV_TWO(2));
      v[i + 1] = __builtin_shufflevector(a, b, TERSEKV_TWO(4), TERSEKV_TWO(6));
#else
      v[i] = __builtin_shufflevector(a, b, TERSEKV_TWO(0));
      v[i + 1] = __builtin_shufflevector(a, b, TERSEKV_TWO(2));
#endif
#undef TERSEKV_TWO
    }
  }
}

}  // namespace tersekv::simd
