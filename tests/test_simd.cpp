// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/simd_math.hpp"
#include "tersekv/simd_spread.hpp"

using support::ErrorStatistics;
using support::Random;
using support::within;
using tersekv::BFloat16;
using tersekv::from_float;
using tersekv::Half;
using tersekv::to_float;
namespace simd = tersekv::simd;

namespace {

template <class T>
void check_load() {
  Random random(3);
  INFO(random);
  std::vector<T> memory(64);
  for (T& x : memory) x = from_float<T>(random.normal(100));
  memory[1] = from_float<T>(0.0f);
  memory[2] = from_float<T>(-65504.0f);
  memory[5] = from_float<T>(0x1p-20f);  // subnormal as a half
  // Any alignment: rows of a head_dim that is no multiple of the vector start anywhere.
  for (std::size_t start = 0; start + simd::kLanes <= memory.size(); ++start) {
    const simd::Floats got = simd::load(memory.data() + start);
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      CHECK(got[lane] == to_float(memory[start + static_cast<std::size_t>(lane)]));
    }
  }
}

}  // namespace

TEST_CASE("round gives the nearest whole number, whatever its size") {
  Random random(6);
  INFO(random);
  for (const double size : {1.0, 100.0, 1e6, 1e8, 1e12, 1e30}) {
    for (int trial = 0; trial < 100; ++trial) {
      const auto x = static_cast<float>(random.normal(size));
      const float whole = simd::round(simd::broadcast(x))[0];
      CHECK(whole == std::nearbyint(whole));
      CHECK(std::abs(whole - x) <= 0.5f);
    }
  }
}

TEST_CASE("load reads every element type at any alignment") {
  check_load<float>();
  check_load<Half>();
  check_load<BFloat16>();
}

template <class T, int Vectors>
void check_spread() {
  Random random(5);
  INFO(random);
  std::vector<T> memory(static_cast<std::size_t>(Vectors * simd::kLanes + 1));
  for (T& x : memory) x = from_float<T>(random.normal(100));
  simd::Floats v[std::size_t{Vectors}];
  simd::load_spread<Vectors>(memory.data() + 1, v);
  simd::Floats spread[std::size_t{Vectors}];
  std::memcpy(spread, v, sizeof v);
  simd::in_order<Vectors, T>(v);
  for (int i = 0; i < Vectors * simd::kLanes; ++i) {
    CHECK(v[i / simd::kLanes][i % simd::kLanes] ==
          to_float(memory[static_cast<std::size_t>(i + 1)]));
  }
  simd::spread<Vectors, T>(v);
  CHECK(std::memcmp(spread, v, sizeof v) == 0);
}

TEST_CASE("load_spread and in_order read numbers in order, spread goes back, of every type") {
  check_spread<float, 3>();
  check_spread<Half, 2>();
  check_spread<BFloat16, 1>();
  check_spread<BFloat16, 2>();
  check_spread<BFloat16, 3>();
  check_spread<BFloat16, 4>();
}

TEST_CASE("dot4 adds up products of unsigned and signed bytes, four to a lane") {
  Random random(5);
  INFO(random);
  for (int i = 0; i < 200; ++i) {
    std::array<std::uint8_t, 4 * simd::kLanes> a;
    std::array<std::int8_t, 4 * simd::kLanes> b;
    for (auto& x : a) x = static_cast<std::uint8_t>(i == 0 ? 255 : random.integer(0, 255));
    for (auto& x : b) x = static_cast<std::int8_t>(i == 0 ? -128 : random.integer(-128, 127));
    const auto start = static_cast<std::int32_t>(random.integer(-1000000, 1000000));
    const simd::Ints got =
        simd::dot4(simd::Ints{} + start, simd::load_bytes(a.data()), simd::load_bytes(b.data()));
    for (std::size_t lane = 0; lane < simd::kLanes; ++lane) {
      std::int32_t want = start;
      for (std::size_t c = 4 * lane; c < 4 * lane + 4; ++c) want += a[c] * b[c];
      CHECK(got[lane] == want);
    }
  }
}

TEST_CASE("transpose_bytes gathers the bytes of four lanes by their place") {
  std::array<std::uint8_t, 4 * simd::kLanes> bytes, got;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const simd::Ints transposed = simd::transpose_bytes(simd::load_bytes(bytes.data()));
  std::memcpy(got.data(), &transposed, sizeof transposed);
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i] == i / 16 * 16 + i % 4 * 4 + i / 4 % 4);
  }
}

TEST_CASE("load agrees with the scalar conversion for every finite half and bfloat16") {
  const auto check = [](auto element, std::uint32_t exponent) {
    using T = decltype(element);
    std::array<T, 16> run;
    for (std::uint32_t pattern = 0; pattern < 65536; pattern += 16) {
      for (std::uint32_t i = 0; i < 16; ++i) run[i].bits = static_cast<std::uint16_t>(pattern + i);
      if ((pattern & exponent) == exponent) continue;
      // A bfloat16 subnormal is a subnormal float, which -ffast-math may flush.
      if (sizeof(T) == 2 && exponent == 0x7f80 && (pattern & exponent) == 0) continue;
      for (std::size_t start = 0; start + simd::kLanes <= 16; start += simd::kLanes) {
        const simd::Floats got = simd::load(run.data() + start);
        for (int lane = 0; lane < simd::kLanes; ++lane) {
          const float want = to_float(run[start + static_cast<std::size_t>(lane)]);
          if (got[lane] != want) FAIL("pattern " << pattern << ", lane " << lane);
        }
      }
    }
  };
  check(Half{}, 0x7c00);
  check(BFloat16{}, 0x7f80);
  SUCCEED();
}

TEST_CASE("store, broadcast, sum, max, min, any, any_above and lanes_at_most do what they say") {
  Random random(4);
  INFO(random);
  for (int trial = 0; trial < 50; ++trial) {
    const std::vector<float> x = random.normals(simd::kLanes), y = random.normals(simd::kLanes);
    const simd::Floats a = simd::load(x.data()), b = simd::load(y.data());
    std::vector<float> stored(simd::kLanes + 2, -1.0f);
    simd::store(stored.data() + 1, a);
    CHECK(std::vector<float>(stored.begin() + 1, stored.end() - 1) == x);
    CHECK(stored.front() == -1.0f);
    CHECK(stored.back() == -1.0f);
    double total = 0;
    for (float element : x) total += element;
    CHECK(support::close(simd::sum(a), total, 0, 1e-5));
    CHECK(simd::max(a) == *std::max_element(x.begin(), x.end()));
    CHECK(simd::min(a) == *std::min_element(x.begin(), x.end()));
    CHECK(simd::lanes_at_most(a, simd::max(a)) == (1u << simd::kLanes) - 1);
    CHECK(simd::lanes_at_most(a, std::nextafter(simd::min(a), -100.0f)) == 0);
    CHECK_FALSE(simd::any_above(a, simd::max(a)));
    CHECK(simd::any_above(a, std::nextafter(simd::max(a), -100.0f)));
    CHECK_FALSE(simd::any(a != a));
    for (std::size_t i = 0; i < x.size(); ++i) {
      simd::Ints one_lane = {};
      one_lane[static_cast<int>(i)] = 1 << (trial % 31);
      CHECK(simd::any(one_lane));
      CHECK(simd::max(a, b)[static_cast<int>(i)] == std::max(x[i], y[i]));
      CHECK(simd::min(a, b)[static_cast<int>(i)] == std::min(x[i], y[i]));
      for (std::size_t j = 0; j < x.size(); ++j) {
        CHECK((simd::lanes_at_most(a, x[i]) >> j & 1u) == (x[j] <= x[i] ? 1u : 0u));
      }
      CHECK(simd::broadcast(x[i])[static_cast<int>(i)] == x[i]);
    }
  }
}
