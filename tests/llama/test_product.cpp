// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "product.hpp"
#include "quant_reference.hpp"
#include "support/random.hpp"

namespace {

using llama::TensorType;
using llama_test::Floats;
using llama_test::judge;
using llama_test::Judgement;
using llama_test::kQuantisedTypes;
using llama_test::random_weight;
using llama_test::Weight;

// With the memory that it is packed into.
struct Packed {
  explicit Packed(const Weight& from)
      : memory(static_cast<std::size_t>(llama::PackedWeight::bytes(from.tensor))),
        weight(from.tensor, memory.data()) {}

  std::vector<std::byte> memory;
  llama::PackedWeight weight;
};

// y [rows of x, rows of the weight] of x [rows of x, cols]
Floats multiply(const Weight& weight, const Floats& x, llama::Team& team = llama::Team::of_one()) {
  const Packed made(weight);
  const llama::PackedWeight& packed = made.weight;
  const auto rows = static_cast<std::int64_t>(x.size()) / packed.cols();
  llama::RoundedRows rounded;
  rounded.round(x.data(), rows, packed.cols(), team);
  Floats y(static_cast<std::size_t>(rows * packed.rows()));
  const llama::Product product{&packed, y.data()};
  llama::multiply({&product, 1}, rounded, team);
  return y;
}

Floats multiply_exact(const Weight& weight, const Floats& x) {
  Floats y(static_cast<std::size_t>(weight.tensor.rows));
  llama::matvec_exact(weight.tensor, x.data(), y.data(), llama::Team::of_one());
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

Floats part(const Floats& all, std::size_t index, std::size_t size) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(index * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace

TEST_CASE("products of quantised weights err as 16-bit rounding must, no more and no less") {
  for (const TensorType type : kQuantisedTypes) {
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

TEST_CASE("products of any number of rows, of x and of the weight, are within their bounds") {
  support::Random random(4);
  for (const TensorType type : kQuantisedTypes) {
    CAPTURE(llama::block_layout(type)->name);
    for (const std::int64_t rows : {1, 15, 16, 17, 50}) {
      const Weight weight = random_weight(type, rows, 96, random);
      for (const std::size_t tokens : {1, 2, 7, 13}) {
        const Floats x = random.normals(tokens * 96);
        const Floats y = multiply(weight, x);
        for (std::size_t t = 0; t < tokens; ++t) {
          const Floats of_token = part(y, t, static_cast<std::size_t>(rows));
          CHECK(judge(weight, part(x, t, 96), of_token).worst <= 1);
        }
      }
    }
  }
}

TEST_CASE("levels and elements at their limits do not overflow") {
  for (const TensorType type : kQuantisedTypes) {
    CAPTURE(llama::block_layout(type)->name);
    support::Random random(5);
    Weight weight = random_weight(type, 16, 64, random);
    // All levels' bits set: the largest, but for Q8_0, whose 0x80 is the most negative.
    const auto extreme = static_cast<std::byte>(type == TensorType::q8_0 ? 0x80 : 0xff);
    const bool offset = llama::level_format(type).has_offset;
    const auto block = static_cast<std::size_t>(llama::block_layout(type)->bytes);
    for (std::size_t at = 0; at < weight.bytes.size(); ++at) {
      if (at % block >= (offset ? 4 : 2)) weight.bytes[at] = extreme;
    }
    for (const float sign : {1.0f, -1.0f}) {
      const Floats x(64, sign * 3);
      CHECK(judge(weight, x, multiply(weight, x)).worst <= 1);
    }
  }
}

TEST_CASE(
    "a row of x gives the same bits alone, among others, and whatever the number of threads") {
  support::Random random(6);
  for (const TensorType type : kQuantisedTypes) {
    CAPTURE(llama::block_layout(type)->name);
    const Weight weight = random_weight(type, 77, 96, random);
    constexpr std::size_t kTokens = 141;  // more than are worked on at once
    const Floats x = random.normals(kTokens * 96);
    const Floats expected = multiply(weight, x);
    for (const int threads : {2, 3, 16}) {
      llama::Team team(threads);
      CHECK(multiply(weight, x, team) == expected);
    }
    for (std::size_t t = 0; t < kTokens; ++t) {
      CHECK(multiply(weight, part(x, t, 96)) == part(expected, t, 77));
    }
  }
}

TEST_CASE("several products at once are those of one after the other") {
  support::Random random(7);
  const Weight a = random_weight(TensorType::q4_1, 13, 64, random);
  const Weight b = random_weight(TensorType::q8_0, 50, 64, random);
  const Packed packed_a(a), packed_b(b);
  const Floats x = random.normals(3 * 64);
  llama::Team team(2);
  llama::RoundedRows rows;
  rows.round(x.data(), 3, 64, team);
  Floats y_a(3 * 13), y_b(3 * 50);
  const llama::Product products[] = {{&packed_b.weight, y_b.data()},
                                     {&packed_a.weight, y_a.data()}};
  llama::multiply(products, rows, team);
  CHECK(y_a == multiply(a, x));
  CHECK(y_b == multiply(b, x));
}

TEST_CASE("inputs at the edges of float give sound products") {
  support::Random random(8);
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
