// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// IEEE binary16, as bits.
struct Half {
  std::uint16_t bits = 0;
};
/// bfloat16: the upper half of a float, as bits.
struct BFloat16 {
  std::uint16_t bits = 0;
};

TERSEKV_HD inline float to_float(float x) { return x; }

TERSEKV_HD inline float to_float(BFloat16 x) {
  return detail::bit_copy<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

TERSEKV_HD inline float to_float(Half x) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  const std::uint32_t sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = x.bits & 0x3ffu;
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  // Zero or subnormal: mantissa * 2^-24, exact in float.
  const float small = static_cast<float>(static_cast<std::int32_t>(mantissa)) * 0x1p-24f;
  const std::uint32_t magnitude =
      exponent == 0 ? detail::bit_copy<std::uint32_t>(small) : wide << 23 | mantissa << 13;
  return detail::bit_copy<float>(sign | magnitude);
#endif
}

/// Rounds to nearest, ties to even; beyond the largest finite value to infinity.
template <class T>
TERSEKV_HD T from_float(float x);

template <>
TERSEKV_HD inline float from_float<float>(float x) {
  return x;
}

template <>
TERSEKV_HD inline BFloat16 from_float<BFloat16>(float x) {
#if defined(__CUDA_ARCH__)
  BFloat16 narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
#else
  const std::uint32_t bits = detail::bit_copy<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;  // must not round into an infinity
  return {static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded)};
#endif
}

template <>
TERSEKV_HD inline Half from_float<Half>(float x) {
#if defined(__CUDA_ARCH__)
  Half narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
#else
  const std::uint32_t bits = detail::bit_copy<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Without branches, so that loops become vectors. Beside a half all units are 2^-24, as those of
  // subnormals: adding it rounds to them.
  const float beside_half = detail::bit_copy<float>(magnitude) + 0.5f;
  const std::uint32_t small = detail::bit_copy<std::uint32_t>(beside_half) - 0x3f000000u;
  const std::uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  std::uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;  // 65536 and beyond
  result = magnitude > 0x7f800000u ? 0x7e00u : result;   // NaN
  return {static_cast<std::uint16_t>(sign | result)};
#endif
}

/// How a key or value is stored: the KeyCodec and ValueCodec of a KVCache. `max_magnitude` is the
/// largest input it can hold. Where elements are `scaled`, what is stored times the scale of its
/// key or value is the number. `pack` elements that are added up in a product lie together: of a
/// key that many dimensions, of a value's dimension that many entries.
template <class T>
struct Codec;
template <>
struct Codec<float> {
  static constexpr const char* name = "float32";
  static constexpr bool scaled = false;
  static constexpr Index pack = 1;
  static constexpr float max_magnitude = kMaxMagnitude;
};
template <>
struct Codec<Half> {
  static constexpr const char* name = "float16";
  static constexpr bool scaled = false;
  static constexpr Index pack = 1;
  static constexpr float max_magnitude = 65504.0f;
};
template <>
struct Codec<BFloat16> {
  static constexpr const char* name = "bfloat16";
  static constexpr bool scaled = false;
  static constexpr Index pack = 1;
  static constexpr float max_magnitude = kMaxMagnitude;
};

/// What entries may be stored as.
template <class T>
concept StoredElement = requires {
  Codec<T>::max_magnitude;
};
/// A number that was computed, as T can hold it: what is beyond becomes the largest.
template <class T>
TERSEKV_HD float within(float x) {
  constexpr float most = Codec<T>::max_magnitude;
  return x > most ? most : (x < -most ? -most : x);
}
/// The same as T, for an output, which rounding may have taken a little beyond.
template <class T>
TERSEKV_HD T to_output(float x) {
  return from_float<T>(within<T>(x));
}

/// What q, k, v and out may be made of: numbers by themselves. What a device stores.
template <class T>
concept Element = StoredElement<T> && !Codec<T>::scaled;

}  // namespace tersekv
