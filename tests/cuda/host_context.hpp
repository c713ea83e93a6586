// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "cuda/lanes.hpp"
#include "tersekv/cuda/body/context.hpp"

/// A CUDA grid on the host: every CUDA thread of a block, or of a team of blocks, is a lane that
/// runs beside the others (lanes.hpp), blocks run one after the other. It is slow, and shows what a
/// device would hide: the thread sanitizer sees a missing barrier, and what `copy16` has not
/// delivered yet is poison.
namespace host_cuda {

using tersekv::cuda::Grid;
using tersekv::cuda::kWarp;

/// What the threads of a warp share: a word of exchange for each.
struct Warp {
  explicit Warp(int lanes) : barrier(lanes) {}
  Barrier barrier;
  std::array<std::array<std::byte, 32>, kWarp> slots{};
};

/// What the threads of a block share.
struct Block {
  Block(int threads, std::size_t shared_bytes, Barrier* of_team)
      : barrier(threads),
        team_barrier(of_team),
        slots(static_cast<std::size_t>(threads)),
        memory(shared_bytes + 128) {
    for (int t = 0; t < threads; t += kWarp) {
      warps.push_back(std::make_unique<Warp>(std::min(kWarp, threads - t)));
    }
    // As after another block: anything but zeros.
    std::fill(memory.begin(), memory.end(), std::byte{0xff});
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    shared = memory.data() + (128 - address % 128) % 128;
  }
  Barrier barrier;
  Barrier* team_barrier;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::array<std::byte, 64>> slots;
  std::vector<std::byte> memory;
  std::byte* shared;
};

class Context {
 public:
  Context(Block& in_block, int thread, int threads, Grid at, int rank, int team)
      : block_(in_block), thread_(thread), threads_(threads), at_(at), rank_(rank), team_(team) {}

  Grid block() const { return at_; }
  int thread() const { return thread_; }
  int threads() const { return threads_; }
  int lane() const { return thread_ % kWarp; }
  int warp() const { return thread_ / kWarp; }
  std::byte* shared() const { return block_.shared; }
  void barrier() const { block_.barrier.arrive_and_wait(); }
  void warp_barrier() const { my_warp().barrier.arrive_and_wait(); }

  template <class T>
  T shuffle_xor(T x, int mask) const {
    return shuffle(x, lane() ^ mask);
  }
  template <class T>
  T shuffle(T x, int from) const {
    put(my_warp().slots[at(lane())], x);
    warp_barrier();
    const T other = get<T>(my_warp().slots[at(from)]);
    warp_barrier();
    return other;
  }
  std::uint32_t ballot(bool yes) const {
    put(my_warp().slots[at(lane())], yes);
    warp_barrier();
    std::uint32_t all = 0;
    for (int l = 0; l < std::min(kWarp, threads_ - warp() * kWarp); ++l) {
      all |= static_cast<std::uint32_t>(get<bool>(my_warp().slots[at(l)])) << l;
    }
    warp_barrier();
    return all;
  }
  template <class T, class Op>
  T reduce(T x, Op op) const {
    put(block_.slots[at(thread_)], x);
    barrier();
    T total = get<T>(block_.slots[0]);
    for (int t = 1; t < threads_; ++t) total = op(total, get<T>(block_.slots[at(t)]));
    barrier();
    return total;
  }
  int exclusive_sum(int x, int& total) const {
    put(block_.slots[at(thread_)], x);
    barrier();
    int before = 0;
    total = 0;
    for (int t = 0; t < threads_; ++t) {
      const int other = get<int>(block_.slots[at(t)]);
      if (t < thread_) before += other;
      total += other;
    }
    barrier();
    return before;
  }

  /// The bytes arrive at the wait for their stage, not before; until then the place holds NaN.
  void copy16(void* to, const void* from, bool there = true) const {
    if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
        reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
      std::abort();  // a device would fault
    }
    std::memset(to, 0xff, 16);
    copies_.push_back({to, there ? from : nullptr, stages_});
  }
  void commit() const { ++stages_; }
  template <int N>
  void wait() const {
    const auto pending = std::partition(copies_.begin(), copies_.end(),
                                        [&](const Copy& c) { return c.stage >= stages_ - N; });
    for (auto copy = pending; copy != copies_.end(); ++copy) {
      copy->from == nullptr ? std::memset(copy->to, 0, 16) : std::memcpy(copy->to, copy->from, 16);
    }
    copies_.erase(pending, copies_.end());
  }

  void load_transposed(std::uint32_t (&r)[4], const void* row) const {
    put(my_warp().slots[at(lane())], row);
    warp_barrier();
    for (int i = 0; i < 4; ++i) {
      std::uint32_t word = 0;
      for (int half = 0; half < 2; ++half) {
        const int from = i * 8 + 2 * (lane() % 4) + half;
        const auto* elements =
            static_cast<const std::uint16_t*>(get<const void*>(my_warp().slots[at(from)]));
        word |= static_cast<std::uint32_t>(elements[lane() / 4]) << (16 * half);
      }
      r[i] = word;
    }
    warp_barrier();
  }

  template <class E>
  void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) const {
    struct Fragments {
      std::uint32_t a[4], b[2];
    };
    put(my_warp().slots[at(lane())], Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    warp_barrier();
    const auto element = [](std::uint32_t word, int high) {
      return tersekv::to_float(E{static_cast<std::uint16_t>(word >> (16 * high))});
    };
    for (int i = 0; i < 4; ++i) {
      const int row = lane() / 4 + 8 * (i / 2), column = 2 * (lane() % 4) + i % 2;
      for (int k = 0; k < 16; ++k) {
        const auto of_a =
            get<Fragments>(my_warp().slots[at(row % 8 * 4 + k % 8 / 2)]).a[row / 8 + 2 * (k / 8)];
        const auto of_b = get<Fragments>(my_warp().slots[at(column * 4 + k % 8 / 2)]).b[k / 8];
        d[i] += element(of_a, k % 2) * element(of_b, k % 2);
      }
    }
    warp_barrier();
  }
  template <class E>
  std::uint32_t pack(float low, float high) const {
    return tersekv::from_float<E>(low).bits |
           static_cast<std::uint32_t>(tersekv::from_float<E>(high).bits) << 16;
  }
  float exp(float x) const { return std::exp(x); }
  std::int32_t fetch_add(std::int32_t* p, std::int32_t x) const {
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
  }
  std::int32_t compare_exchange(std::int32_t* p, std::int32_t expected, std::int32_t x) const {
    __atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
  }

  int team_blocks() const { return team_; }
  int team_rank() const { return rank_; }
  void team_barrier() const { block_.team_barrier->arrive_and_wait(); }

 private:
  struct Copy {
    void* to;
    const void* from;
    long stage;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Warp& my_warp() const { return *block_.warps[at(warp())]; }
  template <class Slot, class T>
  static void put(Slot& slot, const T& x) {
    static_assert(sizeof(T) <= sizeof(Slot) && std::is_trivially_copyable_v<T>);
    std::memcpy(slot.data(), &x, sizeof x);
  }
  template <class T, class Slot>
  static T get(const Slot& slot) {
    T x;
    std::memcpy(&x, slot.data(), sizeof x);
    return x;
  }

  Block& block_;
  int thread_, threads_;
  Grid at_;
  int rank_, team_;
  mutable std::vector<Copy> copies_;
  mutable long stages_ = 0;
};

/// Runs a body over a grid. `team` consecutive blocks in x run at once.
template <class Body>
void run(Grid grid, std::size_t shared_bytes, int team, const typename Body::Args& args,
         int threads = Body::kThreads) {
  struct Shared {
    Shared(int n, std::size_t bytes, int blocks) : team_barrier(n * blocks) {
      for (int b = 0; b < blocks; ++b) {
        each.push_back(std::make_unique<Block>(n, bytes, &team_barrier));
      }
    }
    Barrier team_barrier;
    std::vector<std::unique_ptr<Block>> each;
  };
  // All of the grid's work, teams one after the other; a thread may be a team ahead of another, so
  // each team has shared memory of its own.
  std::vector<std::unique_ptr<Shared>> blocks;
  std::vector<Grid> places;
  for (int z = 0; z < grid.z; ++z) {
    for (int y = 0; y < grid.y; ++y) {
      for (int x = 0; x < grid.x; x += team) {
        places.push_back({x, y, z});
        blocks.push_back(nullptr);
      }
    }
  }
  Barrier between(threads * team);
  run_lanes(threads * team, [&](int t) {
    for (std::size_t p = 0; p < places.size(); ++p) {
      if (t == 0) {
        blocks[p] = std::make_unique<Shared>(threads, shared_bytes, team);
        if (p > 0) blocks[p - 1].reset();
      }
      between.arrive_and_wait();
      const int rank = t / threads;
      Grid at = places[p];
      at.x += rank;
      Body::run(Context(*blocks[p]->each[static_cast<std::size_t>(rank)], t % threads, threads, at,
                        rank, team),
                args);
      between.arrive_and_wait();
    }
  });
}

static_assert(tersekv::cuda::Context<Context>);

}  // namespace host_cuda
