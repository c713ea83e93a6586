// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "../bandwidth.hpp"
#include "../multiply_add.hpp"
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

/// Operations on floats per second of threads that do nothing else.
inline double multiply_add_rate(int threads) {
  const Threads executor(threads);
  double of_one = 0;
  const double seconds = bench::seconds_of([&] {
    executor.run(threads, [&](Index task, int) {
      const double operations = bench::multiply_add_in_registers(static_cast<int>(task));
      if (task == 0) of_one = operations;
    });
  });
  return of_one * threads / seconds;
}

/// Seconds of Eigen's product of two size x size matrices of floats; -1 without Eigen.
double product_seconds(Index size, int threads);

}  // namespace tersekv::peers
