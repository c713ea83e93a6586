// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>

namespace tersekv::detail {

/// Takes exceptions from tasks to who waits for them: an executor's threads have no use for any.
class FirstException {
 public:
  /// f(), of which several may run at the same time.
  template <class F>
  void catch_from(F&& f) noexcept {
    try {
      f();
    } catch (...) {
      if (!caught_.test_and_set()) first_ = std::current_exception();
    }
  }
  /// After all of them: throws what was caught first, if anything was.
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::atomic_flag caught_;
  std::exception_ptr first_;
};

}  // namespace tersekv::detail
