// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tersekv/element.hpp"

#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define TERSEKV_LLAMA_AVX2 1
#include <immintrin.h>
#endif

// The few operations that dequantising is made of, on 32 bytes at a time: with AVX2, else in plain
// loops. Both give the same.
namespace llama::simd {

inline tersekv::Half load_half(const std::byte* at) {
  tersekv::Half half;
  std::memcpy(&half.bits, at, sizeof(half.bits));
  return half;
}

#if defined(TERSEKV_LLAMA_AVX2)

using Bytes = __m256i;

inline float half_to_float(const std::byte* at) { return _cvtsh_ss(load_half(at).bits); }

/// n halves to float.
inline void halves_to_floats(const std::byte* src, std::int64_t n, float* dst) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(halves));
  }
  for (; i < n; ++i) dst[i] = half_to_float(src + 2 * i);
}

/// 32 signed bytes, each plus 128.
inline Bytes load_shifted(const std::byte* at) {
  const Bytes bytes = _mm256_loadu_si256(reinterpret_cast<const Bytes*>(at));
  return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
}

/// The low halves of 16 bytes, then their high halves.
inline Bytes load_nibbles(const std::byte* at) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const Bytes both = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/// Adds 16 to byte j where bit j is set.
inline Bytes add_fifth_bits(Bytes nibbles, std::uint32_t bits) {
  const Bytes own_byte =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const Bytes own_bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const Bytes spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), own_byte);
  const Bytes is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, own_bit), own_bit);
  return _mm256_or_si256(nibbles, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
}

inline void store(Bytes bytes, std::uint8_t* dst) {
  _mm256_storeu_si256(reinterpret_cast<Bytes*>(dst), bytes);
}

#else

struct Bytes {
  std::uint8_t at[32];
};

inline float half_to_float(const std::byte* at) { return tersekv::to_float(load_half(at)); }

inline void halves_to_floats(const std::byte* src, std::int64_t n, float* dst) {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = half_to_float(src + 2 * i);
}

inline Bytes load_shifted(const std::byte* at) {
  Bytes bytes;
  for (int j = 0; j < 32; ++j) bytes.at[j] = static_cast<std::uint8_t>(at[j]) ^ 0x80u;
  return bytes;
}

inline Bytes load_nibbles(const std::byte* at) {
  Bytes bytes;
  for (int j = 0; j < 16; ++j) {
    bytes.at[j] = static_cast<std::uint8_t>(at[j]) & 15u;
    bytes.at[j + 16] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(at[j]) >> 4);
  }
  return bytes;
}

inline Bytes add_fifth_bits(Bytes nibbles, std::uint32_t bits) {
  for (int j = 0; j < 32; ++j) {
    nibbles.at[j] |= static_cast<std::uint8_t>((bits >> j & 1u) << 4);
  }
  return nibbles;
}

inline void store(const Bytes& bytes, std::uint8_t* dst) { std::memcpy(dst, bytes.at, 32); }

#endif

}  // namespace llama::simd
