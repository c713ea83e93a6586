// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/simd_math.hpp"

// The exponentials and logarithms of KeepKV's scores against double precision, with bounds on both
// sides: errors too small would mean that nothing was compared.

using support::Random;
namespace simd = tersekv::simd;

namespace {

/// The largest |got - want| / size over many arguments, of numbers and of vectors.
template <class Argument, class Got, class Want, class Size>
double largest(Argument&& argument, Got&& got, Want&& want, Size&& size) {
  Random random(31);
  double worst = 0;
  for (int i = 0; i < 200'000; ++i) {
    const float x = argument(random, i);
    const double reference = want(static_cast<double>(x));
    const simd::Floats in_vector = got(simd::broadcast(x));
    for (const float result : {got(x), in_vector[0], in_vector[simd::kLanes - 1]}) {
      const double error = std::fabs(static_cast<double>(result) - reference);
      REQUIRE(support::is_finite(error));
      worst = std::max(worst, error / size(reference));
    }
  }
  return worst;
}

double magnitude(double x) { return std::fabs(x); }

/// One copy of it, as a policy's work on a head is: -ffast-math may round otherwise in another.
[[gnu::noinline]] float one_log_add(float a, float b) { return tersekv::detail::log_add(a, b); }

}  // namespace

TEST_CASE("exp_of_negative is exp of the negative magnitude") {
  const double worst = largest(
      [](Random& random, int i) {
        return i % 2 == 0 ? random.uniform(-87, 0) : random.uniform(-1, 0);
      },
      [](auto x) { return tersekv::detail::exp_of_negative(x); },
      [](double x) { return std::exp(x); },
      [](double exponential) { return exponential * (3e-7 - 6e-8 * std::log(exponential)); });
  CHECK(worst < 1);
  CHECK(worst > 0.1);
  CHECK(tersekv::detail::exp_of_negative(0.0f) == 1.0f);
  CHECK(tersekv::detail::exp_of_negative(-0.0f) == 1.0f);
  CHECK(tersekv::detail::exp_of_negative(2.5f) == tersekv::detail::exp_of_negative(-2.5f));
  for (const float far : {-87.0f, -88.0f, -1e4f, -1e30f, 1e30f}) {
    CHECK(tersekv::detail::exp_of_negative(far) > 0.0f);
    CHECK(tersekv::detail::exp_of_negative(far) < 1.7e-38f);
  }
}

TEST_CASE("log_of is the natural logarithm of normal numbers") {
  const auto size = [](double log) { return 2e-7 * std::fabs(log) + 1e-7; };
  const double worst = largest(
      [](Random& random, int i) {
        return i % 2 == 0
                   ? std::ldexp(random.uniform(1, 2), static_cast<int>(random.integer(-126, 127)))
                   : random.uniform(0.5f, 2);
      },
      [](auto x) { return tersekv::detail::log_of(x); }, [](double x) { return std::log(x); },
      size);
  CHECK(worst < 1);
  CHECK(worst > 0.1);
  CHECK(tersekv::detail::log_of(1.0f) == 0.0f);  // a weight of one leaves a logit as it is
  CHECK(support::close(tersekv::detail::log_of(std::numeric_limits<float>::min()), -87.3365447,
                       3e-7, 0));
  CHECK(support::close(tersekv::detail::log_of(std::numeric_limits<float>::max()), 88.7228391, 3e-7,
                       0));
}

TEST_CASE("one_minus_exp does not cancel near 0") {
  const double worst = largest(
      [](Random& random, int i) {
        return i % 2 == 0 ? random.uniform(-20, 0) : -std::ldexp(random.uniform(1, 2), -1 - i % 60);
      },
      [](auto x) { return tersekv::detail::one_minus_exp(x); },
      [](double x) { return -std::expm1(x); }, magnitude);
  CHECK(worst < 4e-7);
  CHECK(worst > 2e-8);
}

TEST_CASE("log_one_plus is the logarithm of one and a share") {
  const double worst = largest(
      [](Random& random, int i) {
        return i % 2 == 0 ? random.uniform(0, 1) : std::ldexp(random.uniform(1, 2), -1 - i % 60);
      },
      [](auto x) { return tersekv::detail::log_one_plus(x); },
      [](double x) { return std::log1p(x); }, magnitude);
  CHECK(worst < 2.5e-7);
  CHECK(worst > 2e-8);
  CHECK(tersekv::detail::log_one_plus(0.0f) == 0.0f);
}

TEST_CASE("log_add adds masses whatever their sizes") {
  Random random(32);
  double worst = 0;
  for (int i = 0; i < 200'000; ++i) {
    const float a = random.uniform(-200, 200);
    const float b = i % 2 == 0 ? random.uniform(-200, 200) : a + random.uniform(-20, 20);
    const double high = std::max(a, b), low = std::min(a, b);
    const double want = high + std::log1p(std::exp(low - high));
    const simd::Floats in_vector = tersekv::detail::log_add(simd::broadcast(a), simd::broadcast(b));
    for (const float result : {one_log_add(a, b), in_vector[0]}) {
      REQUIRE(support::is_finite(result));
      const double error = std::fabs(static_cast<double>(result) - want);
      worst = std::max(worst, error - 6.1e-8 * std::fabs(want));
    }
    REQUIRE(one_log_add(a, b) == one_log_add(b, a));
  }
  CHECK(worst < 4e-7);
  CHECK(worst > 1e-8);
  const volatile float huge =
      tersekv::detail::log_add(1e30f, -1e30f);  // rounded, whatever the flags
  CHECK(huge == 1e30f);
}

TEST_CASE("log_missing is what an average over few values lacks, and 0 over many or none") {
  for (const float decay : {0.0001f, 0.5f, 0.9f, 0.98f, 0.9999f}) {
    const float log_decay = std::log(decay);
    CAPTURE(decay);
    CHECK(tersekv::detail::log_missing(log_decay, 0) == 0.0f);
    for (const std::int32_t queries : {1, 2, 3, 10, 100, 5000, 2'000'000'000}) {
      const double want = std::log(-std::expm1(static_cast<double>(queries) * log_decay));
      CHECK(support::close(tersekv::detail::log_missing(log_decay, queries), want, 1e-6, 5e-7));
      const auto in_vector =
          tersekv::detail::log_missing<simd::Floats>(log_decay, simd::Ints{} + queries);
      CHECK(support::close(in_vector[1], want, 1e-6, 5e-7));
    }
    CHECK(tersekv::detail::log_missing<simd::Floats>(log_decay, simd::Ints{})[1] == 0.0f);
  }
}

TEST_CASE("log_at_most is no more than the logarithm, and near it") {
  Random random(37);
  float low = 1, high = -1;
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::exp(random.uniform(-80, 80));
    const float exact = std::log(x), below = exact - tersekv::detail::log_at_most(x);
    REQUIRE(tersekv::detail::log_at_most(simd::broadcast(x))[0] == tersekv::detail::log_at_most(x));
    REQUIRE(below >= -1e-6f * (1 + std::fabs(exact)));
    low = std::min(low, below);
    high = std::max(high, below);
  }
  CHECK(low < 1e-3f);
  CHECK(high > 0.055f);
  CHECK(high < 0.06f);
}
