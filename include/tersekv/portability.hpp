// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

/// Marks a function that a CUDA team may call as well. Policy parts are written once; on a machine
/// without CUDA the mark is empty.
#if defined(__CUDACC__)
#define TERSEKV_HD __host__ __device__
#else
#define TERSEKV_HD
#endif

/// Before a loop of the host over arrays that should stay in registers.
#if defined(__CUDACC__)
#define TERSEKV_HOST_UNROLL
#elif defined(__clang__)
#define TERSEKV_HOST_UNROLL _Pragma("unroll")
#else
#define TERSEKV_HOST_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tersekv::detail {

static_assert(
    std::endian::native == std::endian::little,
    "tersekv: elements of 16 and 8 bits are taken out of words as on little-endian machines");

/// std::bit_cast that a CUDA team may call.
template <class To, class From>
TERSEKV_HD To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Whether the compiler may reorder sums (`-ffast-math`).
#if (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)) && !defined(__CUDA_ARCH__)
#define TERSEKV_REORDERS_SUMS 1
#else
#define TERSEKV_REORDERS_SUMS 0
#endif

/// x, not to be mixed by `-ffast-math` with what it is added to: for sums whose order is the point.
/// Numbers only: g++ takes vectors apart for its barrier, so elsewhere there is none, and loops
/// around it are vectorised.
template <class T>
TERSEKV_HD T keep_order(T x) {
#if defined(__CUDA_ARCH__)
  return x;
#elif defined(__clang__) && (defined(__x86_64__) || defined(__i386__))
  // Costs nothing, so always: clang says by no macro whether it may reorder sums and no more. It
  // knows the fence elsewhere, too, but cannot compile it.
  return __arithmetic_fence(x);
#elif defined(__GNUC__) && !defined(__clang__) && TERSEKV_REORDERS_SUMS
  return __builtin_assoc_barrier(x);
#else
  return x;
#endif
}

/// Keeps the loop it stands in from being vectorised where the compiler may reorder sums: it would
/// do so otherwise in vectors than in the loop's tail, and a number's bits would depend on its
/// place.
TERSEKV_HD inline void one_by_one() {
#if TERSEKV_REORDERS_SUMS
  asm volatile("");
#endif
}

/// Whether both are true, without a branch in between: for loops that are to be vectorised.
TERSEKV_HD inline bool both(bool a, bool b) {
  return (static_cast<int>(a) & static_cast<int>(b)) != 0;
}

/// The same lane by lane, for what comparing vectors gives.
template <class Ints>
TERSEKV_HD inline Ints both(Ints a, Ints b) requires(sizeof(Ints) > sizeof(float)) {
  return a & b;
}

/// `first ? a : b` without a branch. Compilers move what only one side needs behind a branch, and
/// with floating-point arithmetic there they no longer vectorise the loop.
TERSEKV_HD inline float choose(bool first, float a, float b) {
  const std::int32_t mask = -static_cast<std::int32_t>(first);
  return bit_copy<float>((bit_copy<std::int32_t>(a) & mask) | (bit_copy<std::int32_t>(b) & ~mask));
}
/// The same lane by lane, for vectors and what comparing them gives.
template <class Floats, class Ints>
TERSEKV_HD inline Floats choose(Ints first, Floats a,
                                Floats b) requires(sizeof(Floats) > sizeof(float)) {
  return bit_copy<Floats>(first ? bit_copy<Ints>(a) : bit_copy<Ints>(b));
}

}  // namespace tersekv::detail
