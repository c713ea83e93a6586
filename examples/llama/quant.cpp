// SPDX-License-Identifier: Apache-2.0
#include "quant.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "simd.hpp"
#include "tersekv/element.hpp"

namespace llama {
namespace {

// A block of any quantised format: element j is scale * levels[j] + offset, levels unsigned. For
// the formats with signed levels the offset is a small multiple of the scale, so that dequantised
// values come out exactly as by the usual formula: every product and difference fits in a float.
struct Block {
  float scale;
  float offset;
  simd::Bytes levels;
};

// As the file has it: half scale, [half offset], [32 fifth bits], levels.
template <TensorType type>
Block load_block(const std::byte* at) {
  constexpr LevelFormat format = level_format(type);
  Block block;
  block.scale = simd::half_to_float(at);
  block.offset = format.zero * block.scale;
  at += 2;
  if constexpr (format.has_offset) {
    block.offset = simd::half_to_float(at);
    at += 2;
  }
  if constexpr (format.bits == 8) {
    block.levels = simd::load_shifted(at);
  } else if constexpr (format.bits == 5) {
    std::uint32_t fifths;
    std::memcpy(&fifths, at, sizeof fifths);
    block.levels = simd::add_fifth_bits(simd::load_nibbles(at + sizeof fifths), fifths);
  } else {
    block.levels = simd::load_nibbles(at);
  }
  return block;
}

float dot_float(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;  // independent sums, so that the loop can be vectorised
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * b[i];
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

// A stored row times x, both in float, by pieces that stay in the first cache.
float dot_exact(TensorType type, const std::byte* row, const float* x, std::int64_t cols) {
  constexpr std::int64_t kPiece = 256;
  const BlockLayout layout = *block_layout(type);
  float piece[kPiece];
  float total = 0;
  for (std::int64_t i = 0; i < cols; i += kPiece) {
    const std::int64_t n = std::min(kPiece, cols - i);
    dequantize_row(type, row + i / layout.elements * layout.bytes, n, piece);
    total += dot_float(piece, x + i, n);
  }
  return total;
}

const std::byte* row_data(const Tensor& tensor, std::int64_t row) {
  return tensor.data + row * tensor.row_bytes;
}

}  // namespace

void dequantize_row(TensorType type, const std::byte* src, std::int64_t n, float* dst) {
  const bool done = with_quantised(type, [&]<TensorType quantised>() {
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const Block block = load_block<quantised>(src);
      std::uint8_t levels[kBlock];
      simd::store(block.levels, levels);
      for (std::int64_t j = 0; j < kBlock; ++j) {
        dst[i + j] = block.scale * static_cast<float>(levels[j]) + block.offset;
      }
      src += block_layout(quantised)->bytes;
    }
  });
  if (done) return;
  if (type == TensorType::f32) {
    std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(float));
  } else if (type == TensorType::f16) {
    simd::halves_to_floats(src, n, dst);
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      tersekv::BFloat16 element;
      std::memcpy(&element.bits, src + 2 * i, sizeof(element.bits));
      dst[i] = tersekv::to_float(element);
    }
  }
}

void dequantize_row(const Tensor& tensor, std::int64_t row, float* dst) {
  dequantize_row(tensor.type, row_data(tensor, row), tensor.cols, dst);
}

void dequantize(const Tensor& tensor, float* dst) {
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    dequantize_row(tensor, row, dst + row * tensor.cols);
  }
}

void matvec_exact(const Tensor& weight, const float* x, float* y, Team& team) {
  team.split(weight.rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      y[row] = dot_exact(weight.type, row_data(weight, row), x, weight.cols);
    }
  });
}

}  // namespace llama
