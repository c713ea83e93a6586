// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"

namespace tersekv::detail {

/// Memory that is read later, asked for in cache lines of four places in turns. Intel's processors
/// fetch ahead by themselves in each of the system's pages (4 KiB) that is read or asked for, up to
/// some twenty lines of it: who goes through four of them side by side has four times as many lines
/// on the way as who goes through one after the other. On a Zen 4, which looks ahead by itself as
/// long as it reads in order, it takes the place of that: into the second-level cache, which waits
/// for more lines than the first.
class AskedLines {
 public:
  static constexpr int kPlaces = 4, kLocality = simd::kZen == 4 ? 2 : 3;
  static constexpr Index kLine = 64, kBytes = kPlaces * kLine;

  /// None but those near p, if any.
  explicit AskedLines(const void* p) : places_{p, p, p, p} {}
  AskedLines() = default;
  /// One line of what is at each of four places, then the next ones.
  AskedLines(const void* a, const void* b, const void* c, const void* d) : places_{a, b, c, d} {}
  /// Of `bytes` bytes from p on one line of each quarter, then the next ones.
  static AskedLines of_quarters(const void* p, Index bytes) {
    const Index quarter = bytes / kBytes * kLine;
    const auto* at = static_cast<const std::byte*>(p);
    return {at, at + quarter, at + 2 * quarter, at + 3 * quarter};
  }
  /// What is left of it after `bytes` bytes.
  AskedLines after(Index bytes) const {
    AskedLines rest = *this;
    rest.offset_ += bytes / kBytes * kLine;
    return rest;
  }

  bool any() const { return places_[0] != nullptr; }
  /// What is asked for at place `place` with the `index`-th four.
  const std::byte* line(int place, Index index) const {
    return static_cast<const std::byte*>(places_[place]) + offset_ + index * kLine;
  }
  /// In step `step` of a loop that is to ask for `Lines` lines, 1, 2 or a multiple of 4, in each.
  template <int Lines, int locality = kLocality>
  [[gnu::always_inline]] void ask(Index step) const {
    if constexpr (Lines < kPlaces) {
      constexpr Index steps = kPlaces / Lines;
      if (step % steps == 0) ask_for<locality>(step / steps);
    } else {
      constexpr Index times = Lines / kPlaces;
      TERSEKV_HOST_UNROLL for (Index i = 0; i < times; ++i) ask_for<locality>(step * times + i);
    }
  }

 private:
  template <int locality>
  [[gnu::always_inline]] void ask_for(Index index) const {
    TERSEKV_HOST_UNROLL for (int i = 0; i < kPlaces; ++i) {
      __builtin_prefetch(line(i, index), 0, locality);
    }
    asm volatile("");  // g++ leaves out branches that have no other effect
  }

  const void* places_[std::size_t{kPlaces}] = {};
  Index offset_ = 0;
};

}  // namespace tersekv::detail
