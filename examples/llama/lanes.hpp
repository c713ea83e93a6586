// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "packed_weight.hpp"
#include "simd.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define TERSEKV_LLAMA_AVX512 1
#endif

// What products of packed weights are made of: kTileRows lanes, one to each row of a tile, as one
// vector of AVX-512 (with its integer dot product), two of AVX2, or plain arrays. All give the same
// integers, and but for the portable one the same floats.
namespace llama::lanes {

#if defined(TERSEKV_LLAMA_AVX512)

using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;  ///< 4 columns of every row

inline Floats zero_floats() { return _mm512_setzero_ps(); }
inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Floats load_halves(const std::byte* at) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
inline Bytes load_bytes(const std::byte* at) { return _mm512_loadu_si512(at); }
inline void store_bytes(Bytes b, std::byte* at) { _mm512_storeu_si512(at, b); }
inline Bytes low_halves(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes high_halves(Bytes b) {
  return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15));
}
/// Adds 16 to byte j where bit j is set.
inline Bytes add_fifths(Bytes b, const std::byte* bits) {
  std::uint64_t mask;
  std::memcpy(&mask, bits, sizeof mask);
  return _mm512_mask_add_epi8(b, mask, b, _mm512_set1_epi8(16));
}
/// sum + the products of every row's 4 levels and the 4 elements at x.
template <int bits>
inline Ints dot(Ints sum, Bytes levels, const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof four);
  return _mm512_dpbusd_epi32(sum, levels, _mm512_set1_epi32(four));
}
inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints times_256(Ints a) { return _mm512_maskz_slli_epi32(0xffff, a, 8); }
inline Floats to_floats(Ints a) { return _mm512_maskz_cvtepi32_ps(0xffff, a); }
inline Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats times(Floats a, float b) { return times(a, _mm512_set1_ps(b)); }
/// sum + a * b, rounded once.
inline Floats plus_product(Floats sum, Floats a, float b) {
  return _mm512_fmadd_ps(a, _mm512_set1_ps(b), sum);
}
/// The first `count` lanes.
inline void store(Floats a, std::int64_t count, float* y) {
  _mm512_mask_storeu_ps(y, static_cast<__mmask16>((1u << count) - 1u), a);
}

#elif defined(TERSEKV_LLAMA_AVX2)

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};
using Bytes = Ints;

inline Floats zero_floats() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Ints zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Floats load_halves(const std::byte* at) {
  const auto* halves = reinterpret_cast<const __m128i*>(at);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline Bytes load_bytes(const std::byte* at) {
  const auto* bytes = reinterpret_cast<const __m256i*>(at);
  return {_mm256_loadu_si256(bytes), _mm256_loadu_si256(bytes + 1)};
}
inline Bytes low_halves(Bytes b) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(b.low, mask), _mm256_and_si256(b.high, mask)};
}
inline Bytes high_halves(Bytes b) {
  return low_halves({_mm256_srli_epi16(b.low, 4), _mm256_srli_epi16(b.high, 4)});
}
inline Bytes add_fifths(Bytes b, const std::byte* bits) {
  std::uint32_t low, high;
  std::memcpy(&low, bits, sizeof low);
  std::memcpy(&high, bits + sizeof low, sizeof high);
  return {simd::add_fifth_bits(b.low, low), simd::add_fifth_bits(b.high, high)};
}
template <int bits>
inline __m256i dot(__m256i sum, __m256i levels, __m256i x) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, levels, x);
#else
  if constexpr (bits < 8) {
    const __m256i pairs = _mm256_maddubs_epi16(levels, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  // Pairs of products of 8 bits would not fit into 16: even and odd columns apart, widened.
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(levels, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(levels, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
#endif
}
template <int bits>
inline Ints dot(Ints sum, Bytes levels, const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof four);
  const __m256i all = _mm256_set1_epi32(four);
  return {dot<bits>(sum.low, levels.low, all), dot<bits>(sum.high, levels.high, all)};
}
inline Ints add(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Ints times_256(Ints a) {
  return {_mm256_slli_epi32(a.low, 8), _mm256_slli_epi32(a.high, 8)};
}
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Floats times(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats times(Floats a, float b) {
  const __m256 all = _mm256_set1_ps(b);
  return times(a, {all, all});
}
inline Floats plus_product(Floats sum, Floats a, float b) {
  const __m256 all = _mm256_set1_ps(b);
  return {_mm256_fmadd_ps(a.low, all, sum.low), _mm256_fmadd_ps(a.high, all, sum.high)};
}
inline void store(Floats a, std::int64_t count, float* y) {
  float lanes[kTileRows];
  _mm256_storeu_ps(lanes, a.low);
  _mm256_storeu_ps(lanes + kTileRows / 2, a.high);
  std::copy_n(lanes, count, y);
}

#else

template <class T>
struct Lanes {
  T at[kTileRows] = {};
};
using Floats = Lanes<float>;
using Ints = Lanes<std::int32_t>;
struct Bytes {
  std::uint8_t at[4 * kTileRows];
};

inline Floats zero_floats() { return {}; }
inline Ints zero_ints() { return {}; }
inline Floats load_halves(const std::byte* at) {
  Floats floats;
  simd::halves_to_floats(at, kTileRows, floats.at);
  return floats;
}
inline Bytes load_bytes(const std::byte* at) {
  Bytes bytes;
  std::memcpy(bytes.at, at, sizeof bytes.at);
  return bytes;
}
inline Bytes low_halves(Bytes b) {
  for (std::uint8_t& byte : b.at) byte &= 15u;
  return b;
}
inline Bytes high_halves(Bytes b) {
  for (std::uint8_t& byte : b.at) byte = static_cast<std::uint8_t>(byte >> 4);
  return b;
}
inline Bytes add_fifths(Bytes b, const std::byte* bits) {
  for (std::size_t j = 0; j < sizeof b.at; ++j) {
    const unsigned bit = static_cast<unsigned>(bits[j / 8]) >> (j % 8) & 1u;
    b.at[j] = static_cast<std::uint8_t>(b.at[j] + 16 * bit);
  }
  return b;
}
template <int bits>
inline Ints dot(Ints sum, const Bytes& levels, const std::int8_t* x) {
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    for (std::int64_t j = 0; j < 4; ++j) sum.at[row] += levels.at[4 * row + j] * x[j];
  }
  return sum;
}
inline Ints add(Ints a, const Ints& b) {
  for (std::int64_t row = 0; row < kTileRows; ++row) a.at[row] += b.at[row];
  return a;
}
inline Ints times_256(Ints a) {
  for (std::int32_t& lane : a.at) lane *= 256;
  return a;
}
inline Floats to_floats(const Ints& a) {
  Floats floats;
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    floats.at[row] = static_cast<float>(a.at[row]);
  }
  return floats;
}
inline Floats times(Floats a, const Floats& b) {
  for (std::int64_t row = 0; row < kTileRows; ++row) a.at[row] *= b.at[row];
  return a;
}
inline Floats times(Floats a, float b) {
  for (float& lane : a.at) lane *= b;
  return a;
}
inline Floats plus_product(Floats sum, const Floats& a, float b) {
  for (std::int64_t row = 0; row < kTileRows; ++row) sum.at[row] += a.at[row] * b;
  return sum;
}
inline void store(const Floats& a, std::int64_t count, float* y) { std::copy_n(a.at, count, y); }

#endif

}  // namespace llama::lanes
