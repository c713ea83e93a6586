// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only file that knows the machine's vectors: the compiler's portable vector types, as wide as
// the flags of the including project allow (AVX-512, AVX2, or 128 bits: SSE2, NEON), and the few
// instructions that they do not offer or that compilers do not find (broadcasts, 16 bits to float).
// Nothing here relies on infinities, NaN or on the order of additions, so `-ffast-math` changes no
// more than the last bits.

#include <bit>
#include <cstddef>
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
  Floats v = {};
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

/// Reads one byte of each cache line of `bytes` bytes from p on: unlike a request, it keeps the
/// processor's own prefetching going.
template <class T>
inline void touch(const T* p, Index bytes) {
  const auto* at = reinterpret_cast<const volatile std::byte*>(p);
  for (Index i = 0; i < bytes; i += 64) static_cast<void>(at[i]);
}

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

/// The higher of two; one instruction, where a comparison and a choice would be two.
inline Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return std::bit_cast<Floats>(
      _mm512_maskz_max_ps(0xffff, std::bit_cast<__m512>(a), std::bit_cast<__m512>(b)));
#elif defined(__AVX__)
  return std::bit_cast<Floats>(_mm256_max_ps(std::bit_cast<__m256>(a), std::bit_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}

inline Floats min(Floats a, Floats b) { return -max(-a, -b); }

/// The whole numbers nearest to x, whatever its size.
inline Floats round(Floats x) {
#if defined(__AVX512F__)
  return std::bit_cast<Floats>(
      _mm512_maskz_roundscale_ps(0xffff, std::bit_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX__)
  return std::bit_cast<Floats>(
      _mm256_round_ps(std::bit_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  // By truncation and a correction: adding and subtracting a large constant would be optimised away
  // under -ffast-math. Beyond 2^23 all floats are whole.
  constexpr float large = 0x1p23f;
  const Floats within = max(min(x, broadcast(large)), broadcast(-large));
  const Floats t = within + 0.5f;
  Ints n = __builtin_convertvector(t, Ints);
  n += (t < __builtin_convertvector(n, Floats));  // a true comparison is -1
  return ((x < large) & (x > -large)) ? __builtin_convertvector(n, Floats) : x;
#endif
}

using Quad = float __attribute__((vector_size(16)));
/// v[0] op v[1] op ...: in pairs, pairs of pairs, and so on.
template <class Op>
inline float fold(Quad v, Op op) {
  return op(op(v[0], v[1]), op(v[2], v[3]));
}
template <class Half, class Whole, class Op>
inline float fold_halves(Whole v, Op op) {
  Half halves[2];
  static_assert(sizeof halves == sizeof v);
  std::memcpy(halves, &v, sizeof v);
  return fold(op(halves[0], halves[1]), op);
}
#if defined(__AVX__)
using Octet = float __attribute__((vector_size(32)));
template <class Op>
inline float fold(Octet v, Op op) {
  return fold_halves<Quad>(v, op);
}
#endif
#if defined(__AVX512F__)
template <class Op>
inline float fold(Floats v, Op op) {
  return fold_halves<Octet>(v, op);
}
#endif

inline float sum(Floats v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

inline float max(Floats v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

inline float min(Floats v) { return -max(-v); }

/// The power of two that is nearest to e^x, as its logarithm.
inline Floats power_of(Floats x) { return round(x * 1.44269504088896341f); }

/// e^x 2^-k for whole k >= power_of(x), relative error below 3e-7 for |x| < 1e4 and, beyond, below
/// what the rounding of x does, also under `-ffast-math`; no less than 2^-125.5. The bits before
/// the exponent are those of e^x, so results for different k are exact multiples of each other.
inline Floats exp_over(Floats x, Floats k) {
  // x = n ln 2 + r with |r| <= ln(2)/2; beyond 2^20 or so, where floats are too far apart for that,
  // any such r will do.
  const Floats n = power_of(x);
  Floats r = detail::keep_order(x - n * 0.693359375f) + n * 2.12194440e-4f;
  r = max(min(r, broadcast(0.35f)), broadcast(-0.35f));
  Floats p = r * (1.0f / 5040) + 1.0f / 720;  // as detail::exp_of_small
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
