// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gguf.hpp"
#include "team.hpp"

namespace llama {

/// Elements that share a scale: of all quantised weight formats, and of activations that are
/// rounded to integers.
inline constexpr std::int64_t kBlock = 32;

/// A quantised format, in blocks of kBlock elements: element j is scale * level j + offset, levels
/// unsigned. For the formats with signed levels the offset is `zero` times the scale.
struct LevelFormat {
  int bits;         ///< of a level: 4, 5 or 8
  bool has_offset;  ///< stored with each block
  float zero;       ///< else: offset / scale
};

constexpr LevelFormat level_format(TensorType type) {
  switch (type) {
    case TensorType::q4_0:
      return {4, false, -8};
    case TensorType::q4_1:
      return {4, true, 0};
    case TensorType::q5_0:
      return {5, false, -16};
    case TensorType::q5_1:
      return {5, true, 0};
    case TensorType::q8_0:
      return {8, false, -128};
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
      break;
  }
  return {0, false, 0};
}

/// `n` stored elements (a multiple of the type's block) to float, each as the format defines it.
void dequantize_row(TensorType type, const std::byte* src, std::int64_t n, float* dst);

/// Row `row` of a tensor, e.g. the embedding of a token: dst [cols].
void dequantize_row(const Tensor& tensor, std::int64_t row, float* dst);

/// A whole tensor to float, row-major: dst [rows, cols].
void dequantize(const Tensor& tensor, float* dst);

/// y = W x in float, whatever the weight's type: x [cols], y [rows]. Same bits whatever the number
/// of threads.
void matvec_exact(const Tensor& weight, const float* x, float* y, Team& team);

/// Calls f.template operator()<type>() for a quantised type; returns false for the others.
template <class F>
bool with_quantised(TensorType type, F&& f) {
  switch (type) {
    case TensorType::q4_0:
      f.template operator()<TensorType::q4_0>();
      return true;
    case TensorType::q4_1:
      f.template operator()<TensorType::q4_1>();
      return true;
    case TensorType::q5_0:
      f.template operator()<TensorType::q5_0>();
      return true;
    case TensorType::q5_1:
      f.template operator()<TensorType::q5_1>();
      return true;
    case TensorType::q8_0:
      f.template operator()<TensorType::q8_0>();
      return true;
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
      break;
  }
  return false;
}

inline bool is_quantised(TensorType type) {
  return with_quantised(type, []<TensorType>() {});
}

}  // namespace llama
