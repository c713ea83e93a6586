// SPDX-License-Identifier: Apache-2.0
// Exponentials of vectors against double precision, and the weights that they are multiplied with.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/simd_math.hpp"

using support::ErrorStatistics;
using support::Random;
using support::within;
namespace simd = tersekv::simd;

namespace {

// Relative errors of 2^x. The header promises 1.2e-7, under any flags; that a term of the
// polynomial is missing shows well below.
constexpr double kExpMean = 2.8e-8, kExpLargest = 1.2e-7;

simd::Floats power_of_two(simd::Floats x) { return simd::exp2_over(x, simd::Floats{}); }

/// Relative errors of 2^x over the given arguments, every lane used.
ErrorStatistics exp_errors(const std::vector<float>& x) {
  ErrorStatistics errors;
  for (std::size_t start = 0; start + simd::kLanes <= x.size(); start += simd::kLanes) {
    const simd::Floats result = power_of_two(simd::load(x.data() + start));
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      const double want = std::exp2(static_cast<double>(x[start + static_cast<std::size_t>(lane)]));
      errors.add(result[lane], want, want);
    }
  }
  return errors;
}

std::vector<float> ramp(double low, double high, int count) {
  std::vector<float> x;
  for (int i = 0; i < count; ++i) x.push_back(static_cast<float>(low + (high - low) * i / count));
  return x;
}

float power_of_two(float x) { return power_of_two(simd::broadcast(x))[0]; }

}  // namespace

TEST_CASE("powers of two stay within their promised relative error, and err as float must") {
  for (const auto& [low, high] : {std::pair{-124.0, 0.0}, std::pair{0.0, 126.4},
                                  std::pair{-1.0, 1.0}, std::pair{-1e-3, 1e-3}}) {
    INFO("from " << low << " to " << high);
    const ErrorStatistics errors = exp_errors(ramp(low, high, 400000));
    CHECK(within(errors, {1.0e-8, kExpMean}, {4e-8, kExpLargest}));
  }
}

TEST_CASE("a power of two is right where its whole part changes") {
  std::vector<float> x;
  for (int n = -123; n <= 125; ++n) {
    float middle = static_cast<float>(n) + 0.5f;
    for (int step = 0; step < 4; ++step) middle = std::nextafter(middle, -1000.0f);
    for (int step = 0; step < 8; ++step) {
      x.push_back(middle);
      middle = std::nextafter(middle, 1000.0f);
    }
  }
  x.resize(x.size() / 16 * 16);
  CHECK(within(exp_errors(x), {1.0e-8, 2 * kExpMean}, {4e-8, kExpLargest}));
}

TEST_CASE("a whole power of two is exact") {
  for (int n = -124; n <= 126; ++n) {
    CHECK(power_of_two(static_cast<float>(n)) == std::ldexp(1.0f, n));
  }
  CHECK(power_of_two(-0.0f) == 1.0f);
}

TEST_CASE("a power of two does not become zero") {
  for (float x : {125.0f, 130.0f, 1e4f, 1e30f}) {
    CHECK(power_of_two(-x) >= 0x1p-125f);
    CHECK(power_of_two(-x) <= 0x1p-123f);
  }
}

TEST_CASE("a power of two is the same bits relative to every other") {
  Random random(5);
  INFO(random);
  for (int trial = 0; trial < 1000; ++trial) {
    const simd::Floats x = simd::broadcast(static_cast<float>(random.normal(60)));
    const auto weight = simd::ScaledWeight::of(
        simd::broadcast(static_cast<float>(std::exp(random.normal(3)))), 1.0f);
    const float power = simd::round(x)[0];
    const float plain = simd::exp2_over(x, simd::broadcast(power))[0];
    CHECK((plain > 0.7f && plain < 1.42f));
    CHECK(simd::exp2_over(x, simd::broadcast(power + weight.power[0]), weight)[0] ==
          plain * weight.factor[0]);
    for (float more : {1.0f, 7.0f, 100.0f}) {
      const float less = simd::exp2(simd::broadcast(-more))[0];
      CHECK(simd::exp2_over(x, simd::broadcast(power + more))[0] == plain * less);
      const simd::Floats k = simd::broadcast(power + weight.power[0] + more);
      CHECK(simd::exp2_over(x, k, weight)[0] == plain * weight.factor[0] * less);
    }
  }
}

TEST_CASE("powers of two keep order and size for arguments of any size") {
  const auto weight = simd::ScaledWeight::of(simd::broadcast(3.0f), 1.0f);
  for (float x : {1e4f, 1e7f, 3e9f, 1e20f, 1e37f}) {
    for (float sign : {1.0f, -1.0f}) {
      const simd::Floats high = simd::broadcast(sign * x);
      const simd::Floats low = simd::broadcast(sign * x - 0.5f * x);
      const simd::Floats power = simd::round(high);
      const float most = simd::exp2_over(high, power)[0];
      CHECK((most > 0.7f && most < 1.42f));
      CHECK(simd::exp2_over(high, power, weight)[0] == most * 3.0f);
      CHECK(simd::exp2_over(low, power)[0] < 0x1p-122f);
      CHECK(simd::exp2_over(low, power, weight)[0] < 0x1p-122f);
    }
  }
}

TEST_CASE(
    "a power of two times a weight is that product, relative to what may be, down to 2^-124") {
  for (const float w : {0x1p-10f, 0.3f, 1.0f, 3.0f, 1e6f, 0x1p40f}) {
    for (const float x : {0.0f, 0.3f, -12.4f, 1000.2f, -1e7f}) {
      const simd::Floats logit = simd::broadcast(x), power = simd::round(logit);
      const float product = simd::exp2_over(logit, power)[0] * w;
      for (int more = 0; more <= 300; ++more) {
        const simd::Floats k = power + static_cast<float>(more);
        if (k[0] - power[0] != static_cast<float>(more)) continue;  // x is too large to tell
        INFO(w << " times 2^" << x << " over " << k[0]);
        const double want = std::ldexp(static_cast<double>(product), -more);
        CHECK(static_cast<double>(simd::exp2_over(logit, k, simd::broadcast(w))[0]) ==
              std::max(want, 0x1p-124));
      }
      CHECK(simd::exp2_over(logit, simd::broadcast(1e20f), simd::broadcast(w))[0] == 0x1p-124f);
    }
  }
}

TEST_CASE("a weight is a power of two and a factor near 1, exactly") {
  Random random(7);
  INFO(random);
  std::vector<float> weights = {1.0f, 2.0f, 3.0f, 0x1p-126f, 3e38f, std::nextafter(1.0f, 0.0f)};
  for (int i = 0; i < 1000; ++i) {
    weights.push_back(static_cast<float>(std::exp(random.normal(20))));
  }
  for (const float w : weights) {
    const auto scaled = simd::ScaledWeight::of(simd::broadcast(w), 1.0f);
    INFO(w);
    CHECK(std::ldexp(static_cast<double>(scaled.factor[0]), static_cast<int>(scaled.power[0])) ==
          static_cast<double>(w));
    CHECK((scaled.factor[0] > 0.7071f && scaled.factor[0] < 1.4143f));
    CHECK(scaled.value()[0] == w);
  }
  const auto one = simd::ScaledWeight::of(simd::broadcast(1.0f), 1.0f);
  CHECK((one.power[0] == 0.0f && one.factor[0] == 1.0f));
}

TEST_CASE("a weight's root is a power of two and a factor near 1") {
  Random random(8);
  INFO(random);
  ErrorStatistics errors;
  for (int i = 0; i < 10000; ++i) {
    const auto alpha = static_cast<float>(random.uniform(0.01, 0.99));
    const auto w = static_cast<float>(std::exp(random.normal(2)));
    const auto scaled = simd::ScaledWeight::of(simd::broadcast(w), alpha);
    CHECK((scaled.factor[0] > 0.707f && scaled.factor[0] < 1.415f));
    const double want = std::pow(static_cast<double>(w), static_cast<double>(alpha));
    errors.add(std::ldexp(scaled.factor[0], static_cast<int>(scaled.power[0])), want, want);
  }
  CHECK(within(errors, {2e-8, 2e-7}, {1e-7, 2e-6}));
}

TEST_CASE("exp2 is a power of two, down to 2^-125") {
  for (int k = -125; k <= 127; ++k) {
    CHECK(simd::exp2(simd::broadcast(static_cast<float>(k)))[0] == std::ldexp(1.0f, k));
  }
  CHECK(simd::exp2(simd::broadcast(-1e30f))[0] == 0x1p-125f);
}

TEST_CASE("powers of two never decrease by more than their error") {
  const std::vector<float> x = ramp(-20, 20, 400000);
  float before = 0;
  for (std::size_t start = 0; start + simd::kLanes <= x.size(); start += simd::kLanes) {
    const simd::Floats result = power_of_two(simd::load(x.data() + start));
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      if (result[lane] < before * (1 - static_cast<float>(kExpLargest))) {
        FAIL("at " << x[start + static_cast<std::size_t>(lane)]);
      }
      before = result[lane];
    }
  }
}
