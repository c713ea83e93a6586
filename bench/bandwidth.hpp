// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <new>
#include <vector>

#include "axes.hpp"

namespace tersekv::bench {

/// Seconds on the clock. Medians of samples well under a scheduler's time slice.
inline double wall() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}
/// Seconds this thread has run: on an idle machine the same, on a busy one without the time in
/// which others ran. Costs a fraction of a microsecond, so it is for calls of 10 and more.
inline double cpu() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Seconds that f() takes by a clock.
template <class F>
double seconds_of(F&& f, double (*clock)() = wall) {
  const double start = clock();
  f();
  return clock() - start;
}

/// Keeps every sample, so that other people's work on the machine moves the median little.
class Samples {
 public:
  void add(double value) {
    values_.push_back(value);
    total_ += value;
  }
  double last() const { return values_.back(); }
  double total() const { return total_; }
  std::size_t count() const { return values_.size(); }
  double median() const {
    if (values_.empty()) return 0;
    std::vector<double> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }

 private:
  double total_ = 0;
  std::vector<double> values_;
};

/// Calls `sample(samples)`, which adds some, at least 3 times and for 30 ms of samples; the median.
template <class F>
double median_of(F&& sample) {
  Samples samples;
  for (int calls = 0; calls < 3 || (samples.total() < 0.03 && calls < 10000); ++calls) {
    sample(samples);
  }
  return samples.median();
}

namespace detail {
/// A wrapping sum of 64-byte vectors, in eight chains, so that neither the additions nor the loop
/// bound the reading. `ahead` > 0: so many bytes further on are asked for into the second-level
/// cache, which gets more out of some memories and less out of some caches.
template <Index ahead>
inline std::uint64_t sum_of(const std::uint64_t* data, Index count) {
  using Vector = std::uint64_t __attribute__((vector_size(64)));
  const auto* vectors = reinterpret_cast<const Vector*>(data);
  const Index n = count / 64 * 8;
  Vector sums[8] = {};
  for (Index i = 0; i < n; i += 8) {
    for (int c = 0; c < 8; ++c) {
      if constexpr (ahead > 0) {
        __builtin_prefetch(reinterpret_cast<const char*>(vectors + i + c) + ahead, 0, 2);
      }
      sums[c] += vectors[i + c];
    }
  }
  std::uint64_t total = 0;
  for (const Vector& sum : sums) {
    for (int lane = 0; lane < 8; ++lane) total += sum[lane];
  }
  return total;
}
}  // namespace detail

/// Whether `read(true)` takes fewer seconds than `read(false)`, by medians. To be asked once: the
/// lower of two samples each time would be less than either way takes.
template <class Read>
bool is_ahead_faster(Read&& read) {
  Samples plain, ahead;
  for (int i = 0; i < 7; ++i) {
    plain.add(read(false));
    ahead.add(read(true));
  }
  return ahead.median() < plain.median();
}

/// Reads `bytes` consecutive bytes and adds them up, nothing else: the level of the memory that
/// holds that much sets the time. The faster of two ways to read counts.
class ReadProbe {
 public:
  explicit ReadProbe(Index bytes) : count_(std::max<Index>(bytes / 512, 1) * 64) {
    if (count_ > capacity_) {
      buffer_.reset();
      buffer_.reset(new (std::align_val_t{64}) std::uint64_t[static_cast<std::size_t>(count_)]);
      capacity_ = count_;
      std::fill_n(buffer_.get(), count_, kSeed);  // untouched pages would all be the same zeros
    }
    ahead_ = is_ahead_faster([&](bool ahead) { return ahead ? pass<8192>() : pass<0>(); });
  }
  double bytes() const { return static_cast<double>(count_) * 8; }
  /// Seconds of one pass, by one thread.
  double pass() const { return ahead_ ? pass<8192>() : pass<0>(); }

 private:
  template <Index ahead>
  double pass() const {
    const Index repeats = std::max<Index>((Index{1} << 20) / (8 * count_), 1);
    const double seconds = seconds_of(
        [&] {
          for (Index i = 0; i < repeats; ++i) {
            std::uint64_t sum = detail::sum_of<ahead>(buffer_.get(), count_);
            asm volatile("" : "+r"(sum) : : "memory");  // each pass is wanted
          }
        },
        cpu);
    return seconds / static_cast<double>(repeats);
  }

  struct Release {
    void operator()(std::uint64_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  static inline std::unique_ptr<std::uint64_t[], Release> buffer_;  // grows, is kept
  static inline Index capacity_ = 0;
  Index count_;
  bool ahead_ = false;  ///< which way to read is the faster
};

/// GB/s of reading `bytes` bytes again and again. What a subject of that size is compared with, so
/// it is measured right before the subject.
inline double read_bandwidth(Index bytes) {
  const ReadProbe probe(bytes);
  return probe.bytes() * 1e-9 / median_of([&](Samples& samples) { samples.add(probe.pass()); });
}

}  // namespace tersekv::bench
