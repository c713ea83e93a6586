// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tersekv/config.hpp"

// How the library refuses: std::invalid_argument that says what, expected, got.

namespace tersekv::detail {

/// The parts in a row. (g++ 12 sees overlaps that are not there in chains of std::string's `+`, and
/// would tell the includer so.)
template <class... Parts>
std::string text(const Parts&... parts) {
  std::string result;
  const auto add = [&]<class Part>(const Part& part) {
    if constexpr (std::is_floating_point_v<Part>) {
      char number[32];
      std::snprintf(number, sizeof number, "%g", static_cast<double>(part));
      result += number;
    } else if constexpr (std::is_integral_v<Part>) {
      result += std::to_string(part);
    } else {
      result += part;
    }
  };
  (add(parts), ...);
  return result;
}

[[noreturn]] inline void refuse(const std::string& what, const std::string& expected,
                                const std::string& got) {
  throw std::invalid_argument(text("tersekv: ", what, ": expected ", expected, ", got ", got));
}

/// For conditions that can be said in advance; builds no string where they hold.
template <class Number>
void require(bool holds, const char* what, const char* expected, Number got) {
  if (!holds) refuse(what, expected, text(got));
}

inline void require_equal(const char* what, Index got, Index expected) {
  if (got != expected) refuse(what, text(expected), text(got));
}

/// `index` in [0, count).
inline void require_index(const char* what, Index index, Index count) {
  if (index >= 0 && index < count) return;
  refuse(what, count < 1 ? "none, of a cache that was moved from" : text("0 to ", count - 1),
         text(index));
}

/// A number of tokens or entries that a caller chose: at least `least`, or kAuto where that stands
/// for the method's own choice. Bounded, so that sums of several cannot overflow.
inline void require_count(const char* what, Index n, Index least, bool may_be_auto = false) {
  if ((n >= least && n <= kMostTokens) || (may_be_auto && n == kAuto)) return;
  refuse(what, text("at least ", least, may_be_auto ? " or kAuto" : "", " and below 2^31"),
         text(n));
}

/// False for NaN and infinities, also where the compiler assumes there are none.
inline bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}

/// A finite number in [low, high].
inline void require_between(const char* what, float x, float low, float high) {
  if (is_finite(x) && x >= low && x <= high) return;
  refuse(what, text(low, " to ", high), is_finite(x) ? text(x) : "NaN or infinity");
}

}  // namespace tersekv::detail
