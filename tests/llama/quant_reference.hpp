// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "quant.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/element.hpp"

namespace llama_test {

using llama::Tensor;
using llama::TensorType;
using Floats = std::vector<float>;

inline const std::vector<TensorType> kTypes = {TensorType::f32,  TensorType::f16,  TensorType::bf16,
                                               TensorType::q4_0, TensorType::q4_1, TensorType::q5_0,
                                               TensorType::q5_1, TensorType::q8_0};

inline const std::vector<TensorType> kQuantisedTypes = {
    TensorType::q4_0, TensorType::q4_1, TensorType::q5_0, TensorType::q5_1, TensorType::q8_0};

inline double half_at(const std::byte* at) {
  tersekv::Half half;
  std::memcpy(&half.bits, at, 2);
  return tersekv::to_float(half);
}

/// Element `i` of a stored row, one at a time, as each format is defined.
inline double reference_element(TensorType type, const std::byte* row, std::int64_t i) {
  const llama::BlockLayout layout = *llama::block_layout(type);
  const std::byte* block = row + i / layout.elements * layout.bytes;
  const auto j = static_cast<int>(i % layout.elements);
  const auto byte = [&](int at) { return static_cast<int>(block[at]); };
  const auto nibble = [&](int levels) {
    return j < 16 ? byte(levels + j) % 16 : byte(levels + j - 16) / 16;
  };
  const auto fifth_bit = [&](int bits) { return byte(bits + j / 8) >> (j % 8) & 1; };
  switch (type) {
    case TensorType::f32: {
      float value = 0;
      std::memcpy(&value, block, 4);
      return value;
    }
    case TensorType::f16:
      return half_at(block);
    case TensorType::bf16: {
      tersekv::BFloat16 value;
      std::memcpy(&value.bits, block, 2);
      return tersekv::to_float(value);
    }
    case TensorType::q4_0:
      return half_at(block) * (nibble(2) - 8);
    case TensorType::q4_1:
      return half_at(block) * nibble(4) + half_at(block + 2);
    case TensorType::q5_0:
      return half_at(block) * (nibble(6) + 16 * fifth_bit(2) - 16);
    case TensorType::q5_1:
      return half_at(block) * (nibble(8) + 16 * fifth_bit(4)) + half_at(block + 2);
    case TensorType::q8_0:
      return half_at(block) * static_cast<std::int8_t>(byte(2 + j));
  }
  throw std::logic_error("a type without a reference");
}

/// A weight of random levels and plausible scales, with its memory.
struct Weight {
  std::vector<std::byte> bytes;
  Tensor tensor;

  double at(std::int64_t row, std::int64_t col) const {
    return reference_element(tensor.type, tensor.data + row * tensor.row_bytes, col);
  }
};

inline Weight random_weight(TensorType type, std::int64_t rows, std::int64_t cols,
                            support::Random& random) {
  const llama::BlockLayout layout = *llama::block_layout(type);
  Weight weight;
  Tensor& tensor = weight.tensor;
  tensor.type = type;
  tensor.shape = {cols, rows};
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.row_bytes = cols / layout.elements * layout.bytes;
  weight.bytes.resize(static_cast<std::size_t>(rows * tensor.row_bytes));
  tensor.data = weight.bytes.data();
  for (std::byte& byte : weight.bytes) byte = static_cast<std::byte>(random.integer(0, 255));
  const auto put = [&](std::size_t at, auto value) {
    std::memcpy(weight.bytes.data() + at, &value, sizeof(value));
  };
  const bool has_offset = type == TensorType::q4_1 || type == TensorType::q5_1;
  for (std::size_t at = 0; at < weight.bytes.size(); at += static_cast<std::size_t>(layout.bytes)) {
    if (type == TensorType::f32) {
      put(at, random.normal());
    } else if (type == TensorType::bf16) {
      put(at, tersekv::from_float<tersekv::BFloat16>(random.normal()).bits);
    } else if (type == TensorType::f16) {
      put(at, tersekv::from_float<tersekv::Half>(random.normal()).bits);
    } else {
      const float scale = random.uniform(0.001f, 0.02f);
      put(at, tersekv::from_float<tersekv::Half>(scale).bits);
      if (has_offset) put(at + 2, tersekv::from_float<tersekv::Half>(-10 * scale).bits);
    }
  }
  return weight;
}

/// What a product y = W x may be off by, and is expected to be, when x is rounded to 16 bits in
/// blocks.
struct Judgement {
  double worst = 0;     // largest |error| / bound; at most 1
  double variance = 0;  // mean of (error / its expected standard deviation)^2; close to 1
};

inline Judgement judge(const Weight& weight, const Floats& x, const Floats& y) {
  Judgement judgement;
  const Tensor& tensor = weight.tensor;
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    double exact = 0, magnitude = 0, bound = 0, variance = 0;
    for (std::int64_t first = 0; first < tensor.cols; first += llama::kBlock) {
      float largest = 0;
      for (std::int64_t i = first; i < first + llama::kBlock; ++i) {
        largest = std::max(largest, std::abs(x[static_cast<std::size_t>(i)]));
      }
      const double step = largest / 32639.0;  // rounding errs by up to half a step, uniformly
      for (std::int64_t i = first; i < first + llama::kBlock; ++i) {
        const double w = weight.at(row, i);
        exact += w * x[static_cast<std::size_t>(i)];
        magnitude += std::abs(w * x[static_cast<std::size_t>(i)]);
        bound += std::abs(w) * step / 2;
        variance += w * w * step * step / 12;
      }
    }
    REQUIRE(support::is_finite(y[static_cast<std::size_t>(row)]));
    const double error = y[static_cast<std::size_t>(row)] - exact;
    judgement.worst = std::max(judgement.worst, std::abs(error) / (bound + 1e-5 * magnitude));
    judgement.variance += error * error / variance / static_cast<double>(tensor.rows);
  }
  return judgement;
}

}  // namespace llama_test
