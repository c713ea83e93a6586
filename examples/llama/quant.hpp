// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "gguf.hpp"

namespace llama {

/// Elements of an activation that share one scale when it is rounded to integers; the block of all
/// quantised weight formats.
inline constexpr std::int64_t kBlock = 32;

/// `n` stored elements (a multiple of the type's block) to float, each as the format defines it.
void dequantize_row(TensorType type, const std::byte* src, std::int64_t n, float* dst);

/// Row `row` of a tensor, e.g. the embedding of a token: dst [cols].
void dequantize_row(const Tensor& tensor, std::int64_t row, float* dst);

/// A whole tensor to float, row-major: dst [rows, cols].
void dequantize(const Tensor& tensor, float* dst, int threads = 1);

/// One weight of a product and where its result goes: y [rows].
struct Product {
  const Tensor* weight;
  float* y;
};

/// y = W x, the weights left as they are stored: x [cols], y [rows].
///
/// Quantised weights meet an x rounded to 16 bits with a scale per block of kBlock elements, so
/// that products are sums of integers: |y - W x| <= sum over blocks of max|x_block| / 64516 * sum
/// |w|, plus float rounding. F32, F16 and BF16 weights use x as it is. Reads each weight once;
/// bound by memory bandwidth. Same bits whatever the number of threads.
void matvec(const Tensor& weight, const float* x, float* y, int threads);

/// Several products with the same x (query, key and value projections; gate and up), in one
/// parallel region and with x rounded once. All weights have the same number of columns.
void matvec(std::span<const Product> products, const float* x, int threads);

/// y = W x with x in float whatever the weight's type: what matvec approximates. Slower.
void matvec_exact(const Tensor& weight, const float* x, float* y, int threads);

}  // namespace llama
