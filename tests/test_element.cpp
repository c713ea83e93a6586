// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>

#include "support/random.hpp"
#include "tersekv/element.hpp"

// Conversions are compared by their bits: these tests also run under -ffast-math, where neither NaN
// nor a subnormal float can be trusted to arithmetic.

using tersekv::BFloat16;
using tersekv::from_float;
using tersekv::Half;
using tersekv::to_float;

namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// A small binary floating-point format: what its bit patterns stand for.
struct Format {
  int mantissa_bits, bias, largest_exponent;

  bool is_nan(std::uint32_t magnitude) const { return magnitude > infinity(); }
  std::uint32_t infinity() const {
    return static_cast<std::uint32_t>(largest_exponent) << mantissa_bits;
  }
  /// Of a finite magnitude; of infinity, the value that would come next after the largest.
  double value(std::uint32_t magnitude) const {
    const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
    const auto mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
    return exponent == 0
               ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
               : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  /// The magnitude nearest to x >= 0, by search; ties to even.
  std::uint32_t nearest(double x) const {
    std::uint32_t low = 0, high = infinity();
    if (x >= value(high)) return high;
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (value(middle) <= x ? low : high) = middle;
    }
    const double below = x - value(low), above = value(high) - x;
    if (below == above) return low % 2 == 0 ? low : high;
    return below < above ? low : high;
  }
};

constexpr Format kHalf{10, 15, 31}, kBFloat16{7, 127, 255}, kFloat{23, 127, 255};

/// A float's value in double, also of a subnormal where the machine flushes those to zero.
double exact(std::uint32_t bits) {
  const double magnitude = kFloat.value(bits & 0x7fffffffu);
  return (bits >> 31) != 0 ? -magnitude : magnitude;
}

template <class T>
void check_rounding(std::uint32_t bits, const Format& format) {
  const std::uint32_t magnitude = bits & 0x7fffffffu, sign = bits >> 31;
  const std::uint32_t got = from_float<T>(float_of(bits)).bits;
  CAPTURE(bits, got);
  if (magnitude > 0x7f800000u) {
    REQUIRE(format.is_nan(got & 0x7fffu));
  } else {
    REQUIRE(got == (sign << 15 | format.nearest(exact(magnitude))));
  }
}

template <class T>
void check_all_patterns(const Format& format) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const T x{static_cast<std::uint16_t>(pattern)};
    const std::uint32_t wide = bits_of(to_float(x)), magnitude = pattern & 0x7fffu;
    CAPTURE(pattern, wide);
    if (format.is_nan(magnitude)) {
      REQUIRE((wide & 0x7fffffffu) > 0x7f800000u);
      REQUIRE(format.is_nan(from_float<T>(float_of(wide)).bits & 0x7fffu));
      continue;
    }
    if (magnitude == format.infinity()) {
      REQUIRE((wide & 0x7fffffffu) == 0x7f800000u);
    } else {
      REQUIRE(exact(wide & 0x7fffffffu) == format.value(magnitude));
    }
    REQUIRE(wide >> 31 == pattern >> 15);
    REQUIRE(from_float<T>(float_of(wide)).bits == pattern);
  }
}

/// Around every boundary between two neighbours: just below, on, and just above the tie.
template <class T>
void check_all_ties(const Format& format) {
  for (std::uint32_t m = 0; m < format.infinity(); ++m) {
    // Midpoints are exact in float: one more bit than the narrow format has.
    const std::uint32_t middle = kFloat.nearest((format.value(m) + format.value(m + 1)) / 2);
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      check_rounding<T>(sign | middle, format);
      check_rounding<T>(sign | (middle + 1), format);
      if (middle > 0) check_rounding<T>(sign | (middle - 1), format);
    }
  }
}

template <class T>
void check_random_floats(const Format& format) {
  support::Random random(7);
  INFO(random);
  for (int i = 0; i < 100000; ++i) {
    check_rounding<T>(static_cast<std::uint32_t>(random.integer(0, 0xffffffffll)), format);
  }
}

}  // namespace

TEST_CASE("every half pattern means what IEEE says and survives the round trip") {
  check_all_patterns<Half>(kHalf);
}

TEST_CASE("every bfloat16 pattern means what it says and survives the round trip") {
  check_all_patterns<BFloat16>(kBFloat16);
}

TEST_CASE("floats round to the nearest half, ties to even, at every tie there is") {
  check_all_ties<Half>(kHalf);
}

TEST_CASE("floats round to the nearest bfloat16, ties to even, at every tie there is") {
  check_all_ties<BFloat16>(kBFloat16);
}

TEST_CASE("any float rounds to the nearest half and bfloat16") {
  check_random_floats<Half>(kHalf);
  check_random_floats<BFloat16>(kBFloat16);
}

TEST_CASE("half rounding by hand: overflow, subnormals, zero") {
  const auto half = [](double x) { return from_float<Half>(static_cast<float>(x)).bits; };
  CHECK(half(0.0) == 0x0000);
  CHECK(half(-0.0) == 0x8000);
  CHECK(half(1.0) == 0x3c00);
  CHECK(half(-2.0) == 0xc000);
  CHECK(half(65504.0) == 0x7bff);
  CHECK(half(65519.996) == 0x7bff);
  CHECK(half(65520.0) == 0x7c00);  // halfway to 65536: to even, which is infinity
  CHECK(half(1e30) == 0x7c00);
  CHECK(half(-1e30) == 0xfc00);
  CHECK(half(0x1p-24) == 0x0001);
  CHECK(half(0x1p-25) == 0x0000);  // halfway to zero
  CHECK(half(0x1.8p-24) == 0x0002);
  CHECK(half(0x1.000002p-25) == 0x0001);
  CHECK(half(0x1.ff8p-15) == 0x03ff);  // the largest subnormal
  CHECK(half(0x1.ffcp-15) == 0x0400);  // halfway to the smallest normal
  CHECK(to_float(Half{0x3555}) == 0x1.554p-2f);
}

TEST_CASE("float stays as it is") {
  for (std::uint32_t bits : {0u, 0x80000000u, 0x3f800000u, 0x7f7fffffu, 0x00800000u}) {
    CHECK(bits_of(to_float(from_float<float>(float_of(bits)))) == bits);
  }
}

TEST_CASE("a codec's largest magnitude is stored as a finite number") {
  CHECK(bits_of(to_float(from_float<Half>(tersekv::Codec<Half>::max_magnitude))) ==
        bits_of(65504.0f));
  const float large = tersekv::Codec<BFloat16>::max_magnitude;
  CHECK(std::fabs(to_float(from_float<BFloat16>(large)) / large - 1) < 0x1p-8f);
}
