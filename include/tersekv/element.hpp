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
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return detail::bit_copy<float>(detail::bit_copy<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return detail::bit_copy<float>(sign | wide << 23 | mantissa << 13);
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
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // a NaN must not round into an infinity
    return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
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
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;  // NaN
  } else if (magnitude >= 0x47800000u) {
    result = 0x7c00u;  // 65536 and beyond
  } else if (magnitude >= 0x38800000u) {
    result = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // from 2^-25: a subnormal, or rounds to one
    const std::uint32_t shift = 126 - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1);
    result = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1);
    result += rest > half || (rest == half && (result & 1u));
  }
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
/// What q, k, v and out may be made of: numbers by themselves. What a device stores.
template <class T>
concept Element = StoredElement<T> && !Codec<T>::scaled;

}  // namespace tersekv
