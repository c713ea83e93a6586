// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "quant.hpp"
#include "team.hpp"

namespace llama {

/// Largest magnitude of a rounded element.
inline constexpr std::int32_t kMaxRounded = 32639;  // 127 * 256 + 127

/// One row of activations, rounded to 16 bits in blocks of kBlock. As the machine's integer
/// products take 8 bits, these lie in two planes:
///
///   x[i] = (256 * coarse[i] + fine[i]) * scales[i / kBlock], to half a scale
///
/// The coarse plane alone would lose what lies beside an outlier, and real models have those.
struct RoundedRow {
  const std::int8_t *coarse, *fine;  ///< [cols]
  const float* scales;               ///< [cols / kBlock]
  const float* sums;                 ///< [cols / kBlock], of a block's rounded elements
};

/// Activations on their way into products with quantised weights.
class RoundedRows {
 public:
  /// Rounds x [rows, cols], cols a multiple of kBlock. Every row on its own, so that a row's bits
  /// do not depend on the others. A block with a NaN or an infinity becomes NaN.
  void round(const float* x, std::int64_t rows, std::int64_t cols, Team& team);

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  RoundedRow row(std::int64_t i) const {
    const std::int64_t element = i * cols_, block = element / kBlock;
    return {coarse_.data() + element, fine_.data() + element, scales_.data() + block,
            sums_.data() + block};
  }

 private:
  std::int64_t rows_ = 0, cols_ = 0;
  std::vector<std::int8_t> coarse_, fine_;  // [rows, cols]
  std::vector<float> scales_, sums_;        // [rows, cols / kBlock]
};

}  // namespace llama
