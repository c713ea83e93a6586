// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

/// Marks a function that a CUDA team may call as well. Policy parts are written once; on a machine
/// without CUDA the mark is empty.
#if defined(__CUDACC__)
#define TERSEKV_HD __host__ __device__
#else
#define TERSEKV_HD
#endif

namespace tersekv::detail {

/// std::bit_cast that a CUDA team may call.
template <class To, class From>
TERSEKV_HD To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// x, not to be mixed by `-ffast-math` with what it is added to: for sums whose order is the point.
template <class T>
TERSEKV_HD T keep_order(T x) {
#if defined(__CUDA_ARCH__)
  return x;
#elif defined(__clang__) && (defined(__x86_64__) || defined(__i386__))
  return __arithmetic_fence(x);  // clang knows it elsewhere, too, but cannot compile it
#elif defined(__GNUC__) && !defined(__clang__)
  return __builtin_assoc_barrier(x);
#else
  return x;
#endif
}

/// Keeps the loop it stands in from being vectorised where the compiler may reorder sums: it would
/// do so otherwise in vectors than in the loop's tail, and a number's bits would depend on its
/// place.
TERSEKV_HD inline void one_by_one() {
#if (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)) && !defined(__CUDA_ARCH__)
  asm volatile("");
#endif
}

/// `first ? a : b` without a branch. Compilers move what only one side needs behind a branch, and
/// with floating-point arithmetic there they no longer vectorise the loop.
TERSEKV_HD inline float choose(bool first, float a, float b) {
  const std::int32_t mask = -static_cast<std::int32_t>(first);
  return bit_copy<float>((bit_copy<std::int32_t>(a) & mask) | (bit_copy<std::int32_t>(b) & ~mask));
}

}  // namespace tersekv::detail
