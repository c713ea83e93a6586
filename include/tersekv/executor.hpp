// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/config.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace tersekv {

/// Runs the tasks of a call. A caller's own executor needs
///
///   int workers() const;                     // at most this many tasks at the same time
///   template <class F> void run(Index n, F&& f) const;  // f(task, worker), task in [0, n)
///
/// where no two tasks run at once with the same worker number, all are done when `run` returns, and
/// `run` does not throw of its own. Tasks are of unlike lengths: give each to whoever is free. A
/// task is a head, or a part of a long one where heads do not go round among the workers. Results
/// do not depend on the executor.
struct SerialExecutor {
  int workers() const { return 1; }
  template <class F>
  void run(Index n, F&& f) const {
    for (Index task = 0; task < n; ++task) f(task, 0);
  }
};

#if defined(_OPENMP)
/// OpenMP threads, as many as OpenMP's own default at construction unless said. There only where
/// the includer compiles with OpenMP (-fopenmp; CMake: link tersekv::openmp).
class OpenMPExecutor {
 public:
  OpenMPExecutor() : OpenMPExecutor(0) {}
  explicit OpenMPExecutor(int threads) : threads_(threads > 0 ? threads : omp_get_max_threads()) {}
  int workers() const { return threads_; }
  template <class F>
  void run(Index n, F&& f) const {
    if (n == 1) return f(Index{0}, 0);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads_)
    for (Index task = 0; task < n; ++task) f(task, omp_get_thread_num());
  }

 private:
  int threads_;
};
#endif

}  // namespace tersekv
