// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "tersekv/config.hpp"

#if defined(_OPENMP)
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#endif

namespace tersekv {

/// Runs the tasks of a call. A caller's own executor needs
///
///   int workers() const;                     // at most this many tasks at the same time
///   template <class F> void run(Index n, F&& f) const;  // f(task, worker), task in [0, n)
///
/// where `worker` is in [0, workers()) (else the call throws std::logic_error), no two tasks run at
/// once with the same, all are done when `run` returns, neither `run` nor a task throws, and
/// `workers()` stays what it is. A task is a head, or a part of a long one where heads do not go
/// round among the workers. Give the same task to the same worker every time, as far as that is
/// free: what it knows of the head is in its caches. Best are tasks w, w + workers(), ... to worker
/// w, in this order: it has the same heads in every call then, mostly also of those that several
/// share, and is guessed to come to head h + workers() after head h. Tasks are of unlike lengths,
/// so whoever is done takes from others. A cache holds a copy of its executor, and `clone` makes
/// another, so a pool of threads comes as a handle to it. Results do not depend on the executor.
/// One that leaves tasks out, or runs them twice, is noticed where TERSEKV_CHECKED is defined.
struct SerialExecutor {
  int workers() const { return 1; }
  template <class F>
  void run(Index n, F&& f) const {
    for (Index task = 0; task < n; ++task) f(task, 0);
  }
};

/// See SerialExecutor.
template <class E>
concept TaskExecutor = std::copy_constructible<E> &&
    requires(const E& executor, Index n, void (*task)(Index, int)) {
  { executor.workers() } -> std::convertible_to<int>;
  executor.run(n, task);
};

#if defined(_OPENMP)
/// OpenMP threads, as many as OpenMP's own default at construction unless said, up to kMostThreads.
/// There only where the includer compiles with OpenMP (-fopenmp; CMake: link tersekv::openmp).
class OpenMPExecutor {
 public:
  static constexpr int kMostThreads = 512;

  OpenMPExecutor() : OpenMPExecutor(0) {}
  explicit OpenMPExecutor(int threads)
      : threads_(std::min(threads > 0 ? threads : omp_get_max_threads(), kMostThreads)) {}
  int workers() const { return threads_; }
  template <class F>
  void run(Index n, F&& f) const {
    if (n == 1) return f(Index{0}, 0);
    // Each lot, of the tasks that are as many apart as there are lots, has a bit that is set when
    // it is taken.
    const Index lots = std::min<Index>(n, kMostThreads);
    std::array<std::atomic<std::uint64_t>, kMostThreads / 64> taken = {};
#pragma omp parallel num_threads(threads_)
    {
      const int worker = omp_get_thread_num(), workers = omp_get_num_threads();
      const auto take = [&](Index lot) {
        const std::uint64_t bit = std::uint64_t{1} << lot % 64;
        auto& word = taken[static_cast<std::size_t>(lot / 64)];
        if ((word.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return;
        for (Index task = lot; task < n; task += lots) f(task, worker);
      };
      for (Index lot = worker; lot < lots; lot += workers) take(lot);  // its own
      for (Index lot = lots - 1; lot >= 0; --lot) take(lot);           // and what is left
    }
  }

 private:
  int threads_;
};
#endif

}  // namespace tersekv
