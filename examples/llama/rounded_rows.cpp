// SPDX-License-Identifier: Apache-2.0
#include "rounded_rows.hpp"

#include <algorithm>
#include <bit>

namespace llama {
namespace {

// The nearest integer to an x of up to 16 bits, without a function call: adding 1.5 * 2^23 leaves
// it in the low bits of the float.
std::int32_t nearest(float x) {
  return static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(x + 0x1.8p23f));
}

// Rounds one block; returns its scale and sets `sum` to the sum of its rounded elements / scale.
float round_block(const float* x, std::int8_t* coarse, std::int8_t* fine, std::int32_t& sum) {
  // As integers, magnitudes compare as they do as floats, and NaN comes out on top.
  std::uint32_t largest_bits = 0;
  for (std::int64_t j = 0; j < kBlock; ++j) {
    largest_bits = std::max(largest_bits, std::bit_cast<std::uint32_t>(x[j]) & 0x7fffffffu);
  }
  sum = 0;
  if (largest_bits == 0) {
    std::fill_n(coarse, kBlock, std::int8_t{0});
    std::fill_n(fine, kBlock, std::int8_t{0});
    return 0;
  }
  const float largest = std::bit_cast<float>(largest_bits);
  for (std::int64_t j = 0; j < kBlock; ++j) {
    // The quotient first: the reciprocal of a tiny `largest` would overflow.
    const std::int32_t level = nearest(x[j] / largest * kMaxRounded);
    const std::int32_t high = (level + 128) >> 8;
    coarse[j] = static_cast<std::int8_t>(high);
    fine[j] = static_cast<std::int8_t>(level - 256 * high);
    sum += level;
  }
  return largest / kMaxRounded;
}

}  // namespace

void RoundedRows::round(const float* x, std::int64_t rows, std::int64_t cols, Team& team) {
  rows_ = rows;
  cols_ = cols;
  const std::int64_t blocks = cols / kBlock;
  coarse_.resize(static_cast<std::size_t>(rows * cols));
  fine_.resize(static_cast<std::size_t>(rows * cols));
  scales_.resize(static_cast<std::size_t>(rows * blocks));
  sums_.resize(static_cast<std::size_t>(rows * blocks));
  const auto round_range = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first * blocks; b < last * blocks; ++b) {
      const std::int64_t at = b * kBlock;
      std::int32_t sum = 0;
      const float scale = round_block(x + at, coarse_.data() + at, fine_.data() + at, sum);
      scales_[static_cast<std::size_t>(b)] = scale;
      sums_[static_cast<std::size_t>(b)] = scale * static_cast<float>(sum);
    }
  };
  if (rows == 1) return round_range(0, 1);
  team.split(rows, round_range);
}

}  // namespace llama
