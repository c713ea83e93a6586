// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <string>

#include "quant.hpp"
#include "quant_reference.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/element.hpp"

namespace {

using llama::TensorType;
using llama_test::Floats;
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
    REQUIRE(support::is_finite(y[static_cast<std::size_t>(row)]));
    const double unit = 64 * 0x1p-24 * magnitude;
    worst = std::max(worst, std::abs(y[static_cast<std::size_t>(row)] - exact) / unit);
  }
  return worst;
}

Floats multiply_exact(const Weight& weight, const Floats& x,
                      llama::Team& team = llama::Team::of_one()) {
  Floats y(static_cast<std::size_t>(weight.tensor.rows));
  llama::matvec_exact(weight.tensor, x.data(), y.data(), team);
  return y;
}

}  // namespace

TEST_CASE("dequantised elements are those of the format's definition, to the bit") {
  support::Random random(1);
  for (const TensorType type : kTypes) {
    CAPTURE(llama::block_layout(type)->name);
    const Weight weight = random_weight(type, 37, 96, random);
    Floats all(37 * 96), row(96);
    llama::dequantize(weight.tensor, all.data());
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

TEST_CASE("exact products err by float rounding only") {
  support::Random random(4);
  for (const TensorType type : kTypes) {
    CAPTURE(llama::block_layout(type)->name);
    for (const std::int64_t cols : {32, 256, 288, 1536}) {
      const Weight weight = random_weight(type, 9, cols, random);
      const Floats x = random.normals(cols);
      CHECK(float_error(weight, x, multiply_exact(weight, x)) < 1);
    }
  }
  const Weight odd = random_weight(TensorType::f16, 3, 19, random);
  const Floats x = random.normals(19);
  CHECK(float_error(odd, x, multiply_exact(odd, x)) < 1);
}

TEST_CASE("exact products have the same bits whatever the number of threads") {
  support::Random random(5);
  for (const TensorType type : kTypes) {
    const Weight weight = random_weight(type, 13, 64, random);
    const Floats x = random.normals(64);
    for (const int threads : {2, 3, 16}) {
      llama::Team team(threads);
      CHECK(multiply_exact(weight, x, team) == multiply_exact(weight, x));
    }
  }
}
