// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "packed_weight.hpp"
#include "rounded_rows.hpp"
#include "team.hpp"

namespace llama {

/// One weight of a product and where its result goes: y [x.rows(), weight->rows()].
struct Product {
  const PackedWeight* weight;
  float* y;
};

/// y = x W^T for one row of x or many, the weights as they are stored, x rounded to 16 bits, so
/// that products are sums of integers: |y - x W^T| <= sum over blocks of max|x_block| / 65278 * sum
/// |w|, plus float rounding. Several products with the same x (query, key and value projections;
/// gate and up) are one piece of work for the team. All weights have x.cols() columns.
///
/// Bound by memory for one row of x, by arithmetic for many. A row of x gives the same bits alone,
/// among others, and whatever the number of threads.
void multiply(std::span<const Product> products, const RoundedRows& x, Team& team);

}  // namespace llama
