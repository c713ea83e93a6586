// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tersekv/config.hpp"

// How the library refuses: std::invalid_argument that says what, expected, got.

namespace tersekv::detail {

[[noreturn]] inline void refuse(const std::string& what, const std::string& expected,
                                const std::string& got) {
  throw std::invalid_argument("tersekv: " + what + ": expected " + expected + ", got " + got);
}

/// For conditions that can be said in advance; builds no string where they hold.
template <class Number>
void require(bool holds, const char* what, const char* expected, Number got) {
  if (!holds) refuse(what, expected, std::to_string(got));
}

inline void require_equal(const char* what, Index got, Index expected) {
  if (got != expected) refuse(what, std::to_string(expected), std::to_string(got));
}

/// `index` in [0, count).
inline void require_index(const char* what, Index index, Index count) {
  if (index < 0 || index >= count) {
    refuse(what, "0 to " + std::to_string(count - 1), std::to_string(index));
  }
}

/// A number of tokens or entries that a caller chose: at least `least`, or kAuto where that stands
/// for the method's own choice. Bounded, so that sums of several cannot overflow.
inline void require_count(const char* what, Index n, Index least, bool may_be_auto = false) {
  if ((n >= least && n <= kMostTokens) || (may_be_auto && n == kAuto)) return;
  refuse(what,
         "at least " + std::to_string(least) + (may_be_auto ? " or kAuto" : "") + " and below 2^31",
         std::to_string(n));
}

/// False for NaN and infinities, also where the compiler assumes there are none.
inline bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}

/// A finite number in [low, high].
inline void require_between(const char* what, float x, float low, float high) {
  if (is_finite(x) && x >= low && x <= high) return;
  refuse(what, std::to_string(low) + " to " + std::to_string(high),
         is_finite(x) ? std::to_string(x) : "NaN or infinity");
}

}  // namespace tersekv::detail
