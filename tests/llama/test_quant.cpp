// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "quant.hpp"
#include "quant_reference.hpp"
#include "support/random.hpp"
#include "tersekv/element.hpp"

namespace {

using llama::TensorType;
using llama_test::Floats;
using llama_test::is_quantised;
using llama_test::judge;
using llama_test::Judgement;
using llama_test::kTypes;
using llama_test::random_weight;
using llama_test::Weight;

// |error| of y = W x in units of the float rounding that 64 additions in a row may cause.
double float_error(const Weight& weight, const Floats& x, const Floats& y) {
  double worst = 0;
  for (std::int64_t row = 0; row < weight.tensor.rows; ++row) {
    double exact = 0, magnitude = 0;
    for (std::int64_t i = 0; i < weight.tensor.cols; ++i) {
      exact += weight.at(row, i) * x[static_cast<std::size_t>(i)];
      magnitude += std::abs(weight.at(row, i) * x[static_cast<std::size_t>(i)]);
    }
    const double unit = 64 * 0x1p-24 * magnitude;
    worst = std::max(worst, std::abs(y[static_cast<std::size_t>(row)] - exact) / unit);
  }
  return worst;
}

Floats multiply(const Weight& weight, const Floats& x, int threads = 1) {
  Floats y(static_cast<std::size_t>(weight.tensor.rows));
  llama::matvec(weight.tensor, x.data(), y.data(), threads);
  return y;
}

Floats multiply_exact(const Weight& weight, const Floats& x, int threads = 1) {
  Floats y(static_cast<std::size_t>(weight.tensor.rows));
  llama::matvec_exact(weight.tensor, x.data(), y.data(), threads);
  return y;
}

// x rounded to steps of max / levels per block.
Floats rounded(Floats x, float levels) {
  for (std::size_t first = 0; first < x.size(); first += llama::kBlock) {
    float largest = 0;
    for (std::size_t i = first; i < first + llama::kBlock; ++i) {
      largest = std::max(largest, std::abs(x[i]));
    }
    const float step = largest / levels;
    for (std::size_t i = first; i < first + llama::kBlock; ++i)
      x[i] = std::round(x[i] / step) * step;
  }
  return x;
}

}  // namespace

TEST_CASE("dequantised elements are those of the format's definition, to the bit") {
  support::Random random(1);
  for (const TensorType type : kTypes) {
    CAPTURE(llama::block_layout(type)->name);
    const Weight weight = random_weight(type, 37, 96, random);
    Floats all(37 * 96), row(96);
    llama::dequantize(weight.tensor, all.data(), 2);
    int differing = 0;
    for (std::int64_t r = 0; r < 37; ++r) {
      llama::dequantize_row(weight.tensor, r, row.data());
      for (std::int64_t i = 0; i < 96; ++i) {
        const auto expected = static_cast<float>(weight.at(r, i));
        differing += all[static_cast<std::size_t>(r * 96 + i)] != expected;
        differing += row[static_cast<std::size_t>(i)] != expected;
      }
    }
    CHECK(differing == 0);
  }
}

TEST_CASE("halves of every bit pattern are converted exactly") {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  Floats floats(bits.size());
  llama::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(bits.data()), 65536,
                        floats.data());
  int differing = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const float expected = tersekv::to_float(tersekv::Half{bits[i]});
    differing += floats[i] != expected && !(std::isnan(floats[i]) && std::isnan(expected));
  }
  CHECK(differing == 0);
}

TEST_CASE("one block of Q4_1 by hand") {
  std::vector<std::byte> block(20, std::byte{0x21});  // first half all 1, second half all 2
  const std::uint16_t half = 0x3800, one = 0x3c00;    // scale 0.5, offset 1
  std::memcpy(block.data(), &half, 2);
  std::memcpy(block.data() + 2, &one, 2);
  Floats floats(32);
  llama::dequantize_row(TensorType::q4_1, block.data(), 32, floats.data());
  CHECK(floats[0] == 1.5f);
  CHECK(floats[15] == 1.5f);
  CHECK(floats[16] == 2.0f);
  CHECK(floats[31] == 2.0f);
}

TEST_CASE("products of quantised weights err as 16-bit rounding must, no more and no less") {
  for (const TensorType type : kTypes) {
    if (!is_quantised(type)) continue;
    CAPTURE(llama::block_layout(type)->name);
    support::Random random(2);
    double variance = 0;
    constexpr int kTrials = 40;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Weight weight = random_weight(type, 11, 576, random);
      const Floats x = random.normals(576, std::exp(random.normal(3)));
      const Judgement judgement = judge(weight, x, multiply(weight, x));
      CHECK(judgement.worst <= 1);
      variance += judgement.variance / kTrials;
    }
    CHECK(variance > 0.7);
    CHECK(variance < 1.3);
  }
}

TEST_CASE("the judge of products rejects coarser rounding, no rounding and a wrong sign") {
  support::Random random(3);
  const Weight weight = random_weight(TensorType::q4_1, 400, 576, random);
  Floats x = random.normals(576);
  CHECK(judge(weight, x, multiply_exact(weight, rounded(x, 90 * 254))).variance > 1.3);
  CHECK(judge(weight, x, multiply_exact(weight, x)).variance < 0.7);
  const Floats y = multiply(weight, x);
  x[100] = -x[100];
  CHECK(judge(weight, x, y).worst > 1);
}

TEST_CASE("exact products err by float rounding only") {
  support::Random random(4);
  for (const TensorType type : kTypes) {
    CAPTURE(llama::block_layout(type)->name);
    for (const std::int64_t cols : {32, 256, 288, 1536}) {
      const Weight weight = random_weight(type, 9, cols, random);
      const Floats x = random.normals(cols);
      CHECK(float_error(weight, x, multiply_exact(weight, x)) < 1);
      CHECK((multiply(weight, x) != multiply_exact(weight, x)) == is_quantised(type));
    }
  }
  const Weight odd = random_weight(TensorType::f16, 3, 19, random);
  const Floats x = random.normals(19);
  CHECK(float_error(odd, x, multiply(odd, x)) < 1);
}

TEST_CASE("products have the same bits whatever the number of threads, alone or together") {
  support::Random random(5);
  for (const TensorType type : kTypes) {
    const Weight a = random_weight(type, 13, 64, random);
    const Weight b = random_weight(TensorType::f32, 2, 64, random);
    const Floats x = random.normals(64);
    const Floats expected_a = multiply(a, x), expected_b = multiply(b, x);
    for (const int threads : {0, 1, 2, 3, 16}) {
      CHECK(multiply(a, x, threads) == expected_a);
      CHECK(multiply_exact(a, x, threads) == multiply_exact(a, x));
      Floats got_a(13), got_b(2);
      const llama::Product products[] = {{&b.tensor, got_b.data()}, {&a.tensor, got_a.data()}};
      llama::matvec(products, x.data(), threads);
      CHECK(got_a == expected_a);
      CHECK(got_b == expected_b);
    }
  }
}

TEST_CASE("inputs at the edges of float give sound products") {
  support::Random random(6);
  const Weight weight = random_weight(TensorType::q8_0, 5, 64, random);
  CHECK(multiply(weight, Floats(64, 0.0f)) == Floats(5, 0.0f));
  for (const double deviation : {1e-42, 1e-37, 1e34}) {
    CAPTURE(deviation);
    for (const float y : multiply(weight, random.normals(64, deviation))) {
      CHECK(std::isfinite(y));
      CHECK(std::abs(y) <= 1e3 * deviation);
    }
  }
  const Floats large = random.normals(64, 1e34);
  CHECK(judge(weight, large, multiply(weight, large)).worst <= 1);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Floats x = random.normals(64);
    x[40] = bad;
    for (const float y : multiply(weight, x)) CHECK_FALSE(std::isfinite(y));
  }
}
