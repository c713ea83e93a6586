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
/// two, and are written by who joins the parts, so that a program holds and compiles little for
/// what it seldom says.
class TextPart {
 public:
  // NOLINTBEGIN: implicit, as messages are lists of these
  TextPart(const char* text) : text_(text), kind_(Kind::text) {}
  TextPart(const std::string& text) : TextPart(text.c_str()) {}
  template <class Number>
  requires std::is_floating_point_v<Number> TextPart(Number x)
      : real_(static_cast<double>(x)), kind_(Kind::real) {}
  template <class Number>
  requires std::is_integral_v<Number> TextPart(Number x)
      : whole_(static_cast<long long>(x)), kind_(Kind::whole) {}
  // NOLINTEND

  void append_to(std::string& result) const {
    char number[32];
    if (kind_ == Kind::real) std::snprintf(number, sizeof number, "%g", real_);
    if (kind_ == Kind::whole) std::snprintf(number, sizeof number, "%lld", whole_);
    result += kind_ == Kind::text ? text_ : number;
  }

 private:
  union {
    const char* text_;
    long long whole_;
    double real_;
  };
  enum class Kind { text, whole, real } kind_;
};

/// `{"at most ", n, " entries"}`: no strings where a message is said, nor what would destroy them,
/// which compile slowly. (And g++ 12 sees overlaps that are not there in chains of std::string's
/// `+`, and would tell the includer so.)
using TextParts = std::initializer_list<TextPart>;

[[gnu::noinline]] inline void append_to(std::string& result, TextParts parts) {
  for (const TextPart& part : parts) part.append_to(result);
}
inline std::string text(TextParts parts) {
  std::string result;
  append_to(result, parts);
  return result;
}

[[noreturn]] inline void refuse(TextParts what, TextParts expected, TextParts got) {
  std::string message = "tersekv: ";
  append_to(message, what);
  message += ": expected ";
  append_to(message, expected);
  message += ", got ";
  append_to(message, got);
  throw std::invalid_argument(message);
}

/// For conditions that can be said in advance.
inline void require(bool holds, const char* what, const char* expected, Index got) {
  if (!holds) refuse({what}, {expected}, {got});
}

inline void require_equal(const char* what, Index got, Index expected) {
  if (got != expected) refuse({what}, {expected}, {got});
}

/// `index` in [0, count).
inline void require_index(const char* what, Index index, Index count) {
  if (index >= 0 && index < count) return;
  if (count < 1) refuse({what}, {"none, of a cache that was moved from"}, {index});
  refuse({what}, {"0 to ", count - 1}, {index});
}

/// A number of tokens or entries that a caller chose: at least `least`, or kAuto where that stands
/// for the method's own choice. Bounded, so that sums of several cannot overflow.
inline void require_count(const char* what, Index n, Index least, bool may_be_auto = false) {
  if ((n >= least && n <= kMostTokens) || (may_be_auto && n == kAuto)) return;
  refuse({what}, {"at least ", least, may_be_auto ? " or kAuto" : "", " and below 2^31"}, {n});
}

/// False for NaN and infinities, also where the compiler assumes there are none.
inline bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}

/// As part of a message.
inline TextPart number_or_none(float x) { return is_finite(x) ? TextPart(x) : "NaN or infinity"; }

/// A finite number in [low, high].
inline void require_between(const char* what, float x, float low, float high) {
  if (is_finite(x) && x >= low && x <= high) return;
  refuse({what}, {low, " to ", high}, {number_or_none(x)});
}

}  // namespace tersekv::detail
