// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only file that knows the machine's vectors: the compiler's portable vector types, as wide as
// the flags of the including project allow (AVX-512, AVX2, or 128 bits: SSE2, NEON), and the few
// instructions that they do not offer or that compilers do not find (broadcasts, 16 bits to float).
// Nothing here relies on infinities, NaN or on the order of additions, so `-ffast-math` changes no
// more than the last bits.

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "tersekv/element.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/portability.hpp"

namespace tersekv::simd {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));

inline Floats broadcast(float x) {
#if defined(__AVX512F__)
  return std::bit_cast<Floats>(_mm512_set1_ps(x));
#elif defined(__AVX__)
  return std::bit_cast<Floats>(_mm256_set1_ps(x));
#else
  return Floats{x, x, x, x};
#endif
}

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Floats load(const BFloat16* p) {
#if defined(__AVX512F__)
  __m256i bits;
  std::memcpy(&bits, p, sizeof bits);
  return std::bit_cast<Floats>(std::bit_cast<Ints>(_mm512_maskz_cvtepu16_epi32(0xffff, bits))
                               << 16);
#elif defined(__AVX2__)
  __m128i bits;
  std::memcpy(&bits, p, sizeof bits);
  return std::bit_cast<Floats>(std::bit_cast<Ints>(_mm256_cvtepu16_epi32(bits)) << 16);
#else
  using Shorts = std::uint16_t __attribute__((vector_size(2 * kLanes)));
  Shorts bits;
  std::memcpy(&bits, p, sizeof bits);
  return std::bit_cast<Floats>(__builtin_convertvector(bits, Ints) << 16);
#endif
}

inline Floats load(const Half* p) {
#if defined(__AVX512F__)
  __m256i bits;
  std::memcpy(&bits, p, sizeof bits);
  return std::bit_cast<Floats>(_mm512_maskz_cvtph_ps(0xffff, bits));
#elif defined(__F16C__) && defined(__AVX__)
  __m128i bits;
  std::memcpy(&bits, p, sizeof bits);
  return std::bit_cast<Floats>(_mm256_cvtph_ps(bits));
#else
  Floats v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}

/// Asks for the memory of Vectors vectors of elements from p on, which may be anywhere, to come
/// into the second-level cache: more of such requests can be under way than there are for the first
/// level.
template <int Vectors, class T>
inline void prefetch(const T* p) {
  constexpr int line = 64 / static_cast<int>(sizeof(T));
  for (int i = 0; i < Vectors * kLanes; i += line) __builtin_prefetch(p + i, 0, 2);
}

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

inline Floats min(Floats a, Floats b) { return a < b ? a : b; }

inline float sum(Floats v) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

inline float max(Floats v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

inline float min(Floats v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] < best ? v[i] : best;
  return best;
}

/// e^x, relative error below 3e-7 where the result is a normal float, also under `-ffast-math`; x
/// is clamped to +-87, so nothing overflows and nothing becomes zero.
inline Floats exp(Floats x) {
  const Floats low = broadcast(-87.0f), high = broadcast(87.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  // x = n ln 2 + r with |r| <= ln(2)/2; n by truncation and a correction, as adding and subtracting
  // a large constant would be optimised away under -ffast-math.
  const Floats t = x * 1.44269504088896341f + 0.5f;
  Ints n = __builtin_convertvector(t, Ints);
  n += (t < __builtin_convertvector(n, Floats));  // a true comparison is -1
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = detail::keep_order(x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats p = r * (1.0f / 5040) + 1.0f / 720;  // as detail::exp_of_small
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<Floats>((n + 127) << 23);
}

}  // namespace tersekv::simd
