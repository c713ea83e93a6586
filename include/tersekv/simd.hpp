// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only file, beside simd_spread.hpp and simd_pairs.hpp, that knows the machine's vectors: the
// compiler's portable vector types, as wide as the flags of the including project allow (AVX-512,
// AVX2, or 128 bits: SSE2, NEON), and the few instructions that they do not offer or that compilers
// do not find (broadcasts, 16 bits to float). Nothing here relies on infinities, NaN or on the
// order of additions, so `-ffast-math` changes no more than the last bits.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "tersekv/element.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/processor.hpp"

namespace tersekv::simd {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

/// Lanes of the widest vectors: what is laid out in whole vectors is so for them, and a program of
/// parts compiled for different machines agrees about it.
inline constexpr int kMostLanes = 16;

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));

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

/// v, in a register from here on: left to itself, g++ reads from memory again with each use, and
/// the ports that read become what a block of products waits for.
template <class Vector>
inline Vector in_register(Vector v) {
#if defined(__x86_64__) && defined(__AVX__) && !defined(__CUDACC__)
  asm("" : "+v"(v));
#endif
  return v;
}

/// Asks for `bytes` bytes from p on, which may be anywhere, to come into a cache: the first level's
/// with locality 3, the second's with 2.
template <int locality>
inline void ask(const void* p, Index bytes) {
  const auto* at = static_cast<const std::byte*>(p);
  for (Index i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, locality);
  asm volatile("");  // g++ leaves out calls of functions that have no other effect
}

/// Who reads asks for as much of what comes later, near or far: into the first-level cache, as what
/// lies in the second is then moved but once, or into the second; or into the first in lines apart
/// (detail::AskedLines).
enum class Ask { nothing, near, far, apart };
/// Asks near or far for the memory of Vectors vectors of elements from p on.
template <Ask ask, int Vectors, class T>
[[gnu::always_inline]] inline void prefetch([[maybe_unused]] const T* p) {
  if constexpr (ask == Ask::near || ask == Ask::far) {
    constexpr int line = 64 / static_cast<int>(sizeof(T));
    TERSEKV_HOST_UNROLL for (int i = 0; i < Vectors * kLanes; i += line) {
      __builtin_prefetch(p + i, 0, ask == Ask::near ? 3 : 2);
    }
  }
}

/// Reads one byte of each cache line of `bytes` bytes from p on: unlike a request, it keeps the
/// processor's own prefetching going.
template <class T>
inline void touch(const T* p, Index bytes) {
  const auto* at = reinterpret_cast<const volatile std::byte*>(p);
  for (Index i = 0; i < bytes; i += 64) static_cast<void>(at[i]);
}
/// The same for up to Lines lines, without a loop: around one, g++ keeps sums in memory.
template <int Lines, class T>
inline void touch_some(const T* p, Index bytes) {
  if (bytes <= 0) return;
  const auto* at = reinterpret_cast<const volatile std::byte*>(p);
  TERSEKV_HOST_UNROLL for (int i = 0; i < Lines; ++i) {
    if (64 * i < bytes) static_cast<void>(at[64 * i]);
  }
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

inline Floats min(Floats a, Floats b) {
#if defined(__AVX512F__)
  return std::bit_cast<Floats>(
      _mm512_maskz_min_ps(0xffff, std::bit_cast<__m512>(a), std::bit_cast<__m512>(b)));
#elif defined(__AVX__)
  return std::bit_cast<Floats>(_mm256_min_ps(std::bit_cast<__m256>(a), std::bit_cast<__m256>(b)));
#else
  return a < b ? a : b;
#endif
}

/// As detail::keep_order, for vectors, which stay in their registers.
inline Floats keep_order(Floats v) {
#if TERSEKV_REORDERS_SUMS && !defined(__clang__) && defined(__x86_64__)
  asm("" : "+v"(v));
#elif TERSEKV_REORDERS_SUMS && !defined(__clang__) && defined(__aarch64__)
  asm("" : "+w"(v));
#else
  v = detail::keep_order(v);
#endif
  return v;
}

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

/// 4 * kLanes bytes, four to a lane.
inline Ints load_bytes(const void* p) {
  Ints bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return bytes;
}
/// The lowest byte of each lane.
inline void store_low_bytes(void* p, Ints v) {
  using Bytes = std::int8_t __attribute__((vector_size(kLanes)));
  const Bytes low = __builtin_convertvector(v, Bytes);
  std::memcpy(p, &low, sizeof low);
}
/// The same four bytes in every lane.
inline Ints broadcast_bytes(const void* p) {
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  return std::bit_cast<Ints>(broadcast(std::bit_cast<float>(four)));
}

/// Lane by lane a_low b_low + a_high b_high, of two signed 16-bit numbers each.
inline Ints dot2(Ints a, Ints b) {
#if defined(__AVX512BW__)
  return std::bit_cast<Ints>(
      _mm512_madd_epi16(std::bit_cast<__m512i>(a), std::bit_cast<__m512i>(b)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return std::bit_cast<Ints>(
      _mm256_madd_epi16(std::bit_cast<__m256i>(a), std::bit_cast<__m256i>(b)));
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/// sums + the products of a lane's four bytes, of `a` unsigned, of `b` signed.
inline Ints dot4(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return std::bit_cast<Ints>(_mm512_dpbusd_epi32(
      std::bit_cast<__m512i>(sums), std::bit_cast<__m512i>(a), std::bit_cast<__m512i>(b)));
#else
  using Shorts = std::int16_t __attribute__((vector_size(4 * kLanes)));
  const auto even = std::bit_cast<Shorts>(b) << 8 >> 8, odd = std::bit_cast<Shorts>(b) >> 8;
  return sums + dot2(a & 0x00ff00ff, std::bit_cast<Ints>(even)) +
         dot2(a >> 8 & 0x00ff00ff, std::bit_cast<Ints>(odd));
#endif
}

/// Of each four lanes: their lowest bytes, in one lane, their second ones, and so on.
inline Ints transpose_bytes(Ints x) {
  using Bytes = std::int8_t __attribute__((vector_size(4 * kLanes)));
  const auto b = std::bit_cast<Bytes>(x);
#define TERSEKV_FOUR(i)                                                                      \
  i, i + 4, i + 8, i + 12, i + 1, i + 5, i + 9, i + 13, i + 2, i + 6, i + 10, i + 14, i + 3, \
      i + 7, i + 11, i + 15
#if defined(__AVX512F__)
  return std::bit_cast<Ints>(__builtin_shufflevector(b, b, TERSEKV_FOUR(0), TERSEKV_FOUR(16),
                                                     TERSEKV_FOUR(32), TERSEKV_FOUR(48)));
#elif defined(__AVX__)
  return std::bit_cast<Ints>(__builtin_shufflevector(b, b, TERSEKV_FOUR(0), TERSEKV_FOUR(16)));
#else
  return std::bit_cast<Ints>(__builtin_shufflevector(b, b, TERSEKV_FOUR(0)));
#endif
#undef TERSEKV_FOUR
}

/// The upper halves of a's lanes, then of b's.
inline auto upper_halves(Words a, Words b) {
  using Halves = std::uint16_t __attribute__((vector_size(4 * kLanes)));
  const auto x = std::bit_cast<Halves>(a), y = std::bit_cast<Halves>(b);
#define TERSEKV_FOUR(i) i + 1, i + 3, i + 5, i + 7
#if defined(__AVX512F__)
  return __builtin_shufflevector(x, y, TERSEKV_FOUR(0), TERSEKV_FOUR(8), TERSEKV_FOUR(16),
                                 TERSEKV_FOUR(24), TERSEKV_FOUR(32), TERSEKV_FOUR(40),
                                 TERSEKV_FOUR(48), TERSEKV_FOUR(56));
#elif defined(__AVX__)
  return __builtin_shufflevector(x, y, TERSEKV_FOUR(0), TERSEKV_FOUR(8), TERSEKV_FOUR(16),
                                 TERSEKV_FOUR(24));
#else
  return __builtin_shufflevector(x, y, TERSEKV_FOUR(0), TERSEKV_FOUR(8));
#endif
#undef TERSEKV_FOUR
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

/// Whether any lane of v is above x.
inline bool any_above(Floats v, float x) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(std::bit_cast<__m512>(v), _mm512_set1_ps(x), _CMP_GT_OQ) != 0;
#else
  return max(v) > x;
#endif
}

/// 0, 1, ... kLanes - 1.
inline Ints lane_numbers() {
  Ints numbers = {};
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}

/// The first `n` lanes of a, the others of b.
inline Floats first_lanes(Floats a, Index n, Floats b) {
  const Ints chosen = lane_numbers() < static_cast<std::int32_t>(n);
  return std::bit_cast<Floats>((chosen & std::bit_cast<Ints>(a)) |
                               (~chosen & std::bit_cast<Ints>(b)));
}

/// Whether any lane is not 0.
inline bool any(Ints v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(std::bit_cast<__m512i>(v), std::bit_cast<__m512i>(v)) != 0;
#else
  int some = 0;
  for (int i = 0; i < kLanes; ++i) some |= v[i];
  return some != 0;
#endif
}

/// The lanes of v that are no more than x, as bits: lane 0 is the lowest.
inline unsigned lanes_at_most(Floats v, float x) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(std::bit_cast<__m512>(v), _mm512_set1_ps(x), _CMP_LE_OQ);
#elif defined(__AVX__)
  return static_cast<unsigned>(
      _mm256_movemask_ps(_mm256_cmp_ps(std::bit_cast<__m256>(v), _mm256_set1_ps(x), _CMP_LE_OQ)));
#else
  unsigned lanes = 0;
  for (int i = 0; i < kLanes; ++i) lanes |= (v[i] <= x ? 1u : 0u) << i;
  return lanes;
#endif
}

}  // namespace tersekv::simd

namespace tersekv {
/// Room for `n` floats in whole vectors, of any machine.
inline Index padded_dim(Index n) {
  return (n + simd::kMostLanes - 1) / simd::kMostLanes * simd::kMostLanes;
}
}  // namespace tersekv
