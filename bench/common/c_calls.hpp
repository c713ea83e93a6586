// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

// What a library with C functions needs at its border: no exception leaves it, and its text is
// kept.

namespace tersekv_bench {

inline std::string& last_error() {
  static thread_local std::string text;
  return text;
}
/// f's result, or `failed` where it throws.
template <class R, class F>
R guarded(R failed, F&& f) noexcept {
  try {
    return f();
  } catch (const std::exception& e) {
    try {
      last_error() = e.what();
    } catch (...) {
    }
  } catch (...) {
  }
  return failed;
}
template <class F>
int status_of(F&& f) noexcept {
  return guarded(1, [&] {
    f();
    return 0;
  });
}

}  // namespace tersekv_bench
