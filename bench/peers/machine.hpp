// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "../bandwidth.hpp"
#include "threads.hpp"

// What the machine could do at best: the two sides of the roofline.
namespace tersekv::peers {

/// A buffer that threads read, each a part of its own.
class SharedRead {
 public:
  double pass(Index bytes, int threads) {
    const Threads executor(threads);
    // Whole steps of the summing loop, in whole 64-byte lines.
    const Index part = std::max<Index>(bytes / (512 * threads), 1) * 64;
    reserve(part * threads);
    const Index repeats = std::max<Index>((Index{1} << 20) / (8 * part * threads), 1);
    const auto read = [&](bool ahead) {
      return ahead ? pass<8192>(executor, part, repeats) : pass<0>(executor, part, repeats);
    };
    const auto [way, is_new] = is_ahead_faster_.try_emplace({part, threads}, false);
    if (is_new) way->second = bench::is_ahead_faster(read);
    return read(way->second) * static_cast<double>(bytes) / static_cast<double>(8 * part * threads);
  }

 private:
  template <Index ahead>
  double pass(const Threads& executor, Index part, Index repeats) const {
    const auto read = [&](Index task, int) {
      for (Index i = 0; i < repeats; ++i) {
        std::uint64_t sum = bench::detail::sum_of<ahead>(buffer_.get() + task * part, part);
        asm volatile("" : "+r"(sum) : : "memory");  // each pass is wanted
      }
    };
    const double seconds = bench::seconds_of([&] { executor.run(executor.workers(), read); });
    return seconds / static_cast<double>(repeats);
  }
  void reserve(Index count) {
    const bool large = 8 * static_cast<std::size_t>(count) >= kLargeFrom;
    if (count <= held_ && large == large_) return;
    buffer_.reset();
    held_ = 0;
    large_ = large;
    const std::size_t bytes =
        (8 * static_cast<std::size_t>(count) + kLargePage - 1) / kLargePage * kLargePage;
    buffer_.reset(static_cast<std::uint64_t*>(std::aligned_alloc(kLargePage, bytes)));
    if (buffer_ == nullptr) throw std::bad_alloc();
    if (large) ask_for_large_pages(buffer_.get(), bytes);
    held_ = static_cast<Index>(bytes / 8);
    std::fill_n(buffer_.get(), held_, bench::kSeed);  // zeros might share a page
  }

  struct Free {
    void operator()(std::uint64_t* buffer) const { std::free(buffer); }
  };
  std::map<std::pair<Index, int>, bool> is_ahead_faster_;  ///< by part and threads
  std::unique_ptr<std::uint64_t, Free> buffer_;
  Index held_ = 0;
  bool large_ = false;
};

/// Chains of multiplications and additions that depend on nothing but themselves: enough of them to
/// hide the latency, few enough for the registers. Two operations per lane and turn of a chain.
inline double multiply_add_rate(int threads) {
  constexpr int kChains = 10;
  constexpr Index kTurns = 1 << 18;
  const Threads executor(threads);
  const auto work = [&](Index, int worker) {
    simd::Floats chains[kChains];
    for (int c = 0; c < kChains; ++c) chains[c] = simd::broadcast(static_cast<float>(c + worker));
    const simd::Floats factor = simd::broadcast(0.999f), term = simd::broadcast(1e-3f);
    for (Index turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) chains[c] = chains[c] * factor + term;
    }
    for (int c = 0; c < kChains; ++c) {
      float sum = simd::sum(chains[c]);
      asm volatile("" : : "m"(sum));
    }
  };
  const double seconds = bench::seconds_of([&] { executor.run(threads, work); });
  return 2.0 * simd::kLanes * kChains * static_cast<double>(kTurns) * threads / seconds;
}

/// Seconds of Eigen's product of two size x size matrices of floats; -1 without Eigen.
double product_seconds(Index size, int threads);

}  // namespace tersekv::peers
