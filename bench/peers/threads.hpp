// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <stdexcept>
#include <tersekv/tersekv.hpp>

namespace tersekv::peers {

/// What holds so many bytes, caches and what is read beside them, lies in large pages.
inline constexpr std::size_t kLargeFrom = 16 * kLargePage;

/// The executor of everything here: a loop for one thread, OpenMP's for more.
class Threads {
 public:
  explicit Threads(int count = 1) : count_(count) {
#if !defined(_OPENMP)
    if (count > 1) throw std::invalid_argument("threads: built without OpenMP, expected 1");
#endif
    if (count < 1) throw std::invalid_argument("threads: expected at least 1");
  }
  int workers() const { return count_; }
  template <class F>
  void run(Index n, F&& f) const {
#if defined(_OPENMP)
    if (count_ > 1) return OpenMPExecutor(count_).run(n, f);
#endif
    SerialExecutor{}.run(n, f);
  }

 private:
  int count_;
};

}  // namespace tersekv::peers
