// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tersekv/element.hpp"
#include "tersekv/portability.hpp"

// A kernel body is a function template over an **execution context**: all it knows of the machine.
// On a device the context is a CUDA thread (`tersekv/cuda/context.cuh`); in the tests it is a host
// thread, one for every CUDA thread, so that a missing barrier is a race that a sanitizer finds. A
// body is a struct
//
//   struct Body {
//     struct Args { ... };                       // passed by value, trivially copyable
//     static constexpr int kThreads = 128;       // of a block; if kTakesFewerThreads, at most
//     static std::size_t shared_bytes(...);      // dynamic shared memory, asked on the host
//     template <class Context> static TERSEKV_HD void run(const Context&, const Args&);
//   };

/// Before a loop over registers: unrolled on a device, so that arrays stay in registers.
#if defined(__CUDA_ARCH__)
#define TERSEKV_UNROLL _Pragma("unroll")
#define TERSEKV_UNROLL_BY(n) TERSEKV_UNROLL_PRAGMA(unroll n)
#define TERSEKV_UNROLL_PRAGMA(text) _Pragma(#text)
#else
#define TERSEKV_UNROLL
#define TERSEKV_UNROLL_BY(n)
#endif

namespace tersekv::cuda {

/// Whether a launch may give blocks of a body fewer threads than its `kThreads`.
template <class Body>
inline constexpr bool kFewerThreads = requires {
  requires Body::kTakesFewerThreads;
};

/// The warp of every device this library runs on.
inline constexpr int kWarp = 32;
/// Teams have 1, 2, 4 or 8 blocks.
inline constexpr int kTeamSizes = 4;

/// A block's place in the grid, or the grid's extents.
struct Grid {
  int x = 1, y = 1, z = 1;
};

/// What a body may use.
///
/// - `block()`, `thread()`, `threads()`, `lane()`, `warp()`: where it is
/// - `shared()`: the block's dynamic shared memory, 128-byte aligned
/// - `barrier()`: of the block; `warp_barrier()`: of the warp
/// - `shuffle_xor(x, mask)`, `shuffle(x, lane)`: other lanes' numbers; `ballot(yes)`: a bit for
///   every lane of the warp
/// - `reduce(x, op)`: over the block, the same on all threads; `op` associative and commutative.
///   `exclusive_sum(x, total)`: sum over the threads before this one. Both are barriers.
/// - `copy16(to, from, there)`: 16 bytes from global to shared memory, in the background, zeros
///   where they are not `there`; `commit()` ends
///   a stage; `wait<N>()` returns when all but this thread's latest N stages are there. Others see
///   them after a barrier.
/// - `load_transposed(r, row)`: four 8x8 matrices of 16-bit elements, lane l giving the address of
///   row l % 8 of matrix l / 8; r[i] holds elements (2c, w) and (2c + 1, w) of matrix i, with w =
///   lane / 4 and c = lane % 4
/// - `mma<E>(d, a, b)`: D += A B for a 16x16 A and a 16x8 B of 16-bit E, D in float, laid out over
///   the warp as in PTX's mma.m16n8k16
/// - `pack<E>(low, high)`: two floats to 16-bit E in one word
/// - `exp(x)` for x <= 0
/// - `fetch_add(p, x)`, `compare_exchange(p, expected, x)`: atomic, on global memory, no order
///   implied; both give what was there, the second writes x where that is as expected
/// - `team_blocks()`, `team_rank()`, `team_barrier()`: blocks that work together (a cluster where
///   there are clusters)
template <class C>
concept Context = requires(const C& c, float x, std::uint32_t (&a)[4], std::uint32_t (&b)[2],
                           float (&d)[4], std::int32_t* count, void* to, const void* from,
                           int& total) {
  { c.block() } -> std::convertible_to<Grid>;
  { c.thread() } -> std::convertible_to<int>;
  { c.shared() } -> std::same_as<std::byte*>;
  c.barrier();
  c.warp_barrier();
  { c.shuffle_xor(x, 1) } -> std::same_as<float>;
  { c.shuffle(x, 1) } -> std::same_as<float>;
  { c.ballot(true) } -> std::same_as<std::uint32_t>;
  { c.exclusive_sum(1, total) } -> std::same_as<int>;
  c.copy16(to, from, true);
  c.commit();
  c.template wait<1>();
  c.load_transposed(a, from);
  c.template mma<Half>(d, a, b);
  { c.template pack<BFloat16>(x, x) } -> std::same_as<std::uint32_t>;
  { c.exp(x) } -> std::same_as<float>;
  { c.fetch_add(count, 1) } -> std::same_as<std::int32_t>;
  { c.compare_exchange(count, 1, 2) } -> std::same_as<std::int32_t>;
  { c.team_blocks() } -> std::convertible_to<int>;
  c.team_barrier();
};

}  // namespace tersekv::cuda
