// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tersekv/config.hpp"

// How the library refuses: std::invalid_argument that says what, expected, got.

namespace tersekv::detail {

/// One part of a message: text that lives elsewhere, or a number. Numbers of all types come down to
/// two, so that a program holds and compiles little for what it seldom says.
class TextPart {
 public:
  TextPart(const char* text) : text_(text) {}                 // NOLINT: what `text` is called with
  TextPart(const std::string& text) : text_(text.c_str()) {}  // NOLINT: likewise
  template <class Number>
  requires std::is_arithmetic_v<Number> TextPart(Number x) {  // NOLINT: likewise
    if constexpr (std::is_floating_point_v<Number>) {
      write(static_cast<double>(x));
    } else {
      write(static_cast<long long>(x));
    }
  }
  const char* text() const { return text_ != nullptr ? text_ : number_; }

 private:
  void write(double x) { std::snprintf(number_, sizeof number_, "%g", x); }
  void write(long long x) { std::snprintf(number_, sizeof number_, "%lld", x); }

  const char* text_ = nullptr;
  char number_[32];
};

inline std::string join(std::initializer_list<TextPart> parts) {
  std::string result;
  for (const TextPart& part : parts) result += part.text();
  return result;
}
/// The parts in a row. (g++ 12 sees overlaps that are not there in chains of std::string's `+`, and
/// would tell the includer so.)
template <class... Parts>
std::string text(const Parts&... parts) {
  return join({TextPart(parts)...});
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
