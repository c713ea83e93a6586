// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>

#include "tersekv/c_math.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd_math.hpp"

namespace tersekv {

namespace detail {

/// What the softmax of several rows over some of the entries comes to: of each row its mass, the
/// sum of its exponentials, and the sum of exponentials times values. Both are relative to a power
/// of two of the row's own, so that sums over other entries join them without rounding twice.
class AttentionSums {
 public:
  /// `stride`: of the rows of values, in whole vectors; 0 where values are not wanted.
  static Index floats(Index rows, Index stride) { return padded_dim(rows * (stride + 3)); }

  AttentionSums(float* memory, Index rows, Index stride)
      : values_(memory),
        mass_(memory + rows * stride),
        power_(memory + rows * (stride + 2)),
        rows_(rows),
        stride_(stride) {}

  Index rows() const { return rows_; }
  float* values(Index row) const { return values_ + row * stride_; }
  /// The logarithm of the power of two.
  float& power(Index row) const { return power_[row]; }
  double mass(Index row) const {
    double mass = 0;
    std::memcpy(&mass, mass_ + 2 * row, sizeof mass);
    return mass;
  }
  void set_mass(Index row, double mass) const { std::memcpy(mass_ + 2 * row, &mass, sizeof mass); }
  /// ln of the sum of exponentials.
  float lse(Index row) const {
    return static_cast<float>(0.693147180559945309 * static_cast<double>(power(row)) +
                              detail::log(mass(row)));
  }

  /// Sums over no entries.
  void clear() const {
    std::fill_n(values_, rows_ * (stride_ + 2), 0.0f);
    std::fill_n(power_, rows_, kLowestPower);
  }
  /// The sums over other entries join these. Relative to the higher of both powers.
  [[gnu::noinline]] void add(const AttentionSums& other) const {
    for (Index r = 0; r < rows_; ++r) {
      const float highest = std::max(power(r), other.power(r));
      const simd::Floats here = simd::exp2(simd::broadcast(power(r) - highest));
      const simd::Floats there = simd::exp2(simd::broadcast(other.power(r) - highest));
      power(r) = highest;
      set_mass(r, mass(r) * static_cast<double>(here[0]) +
                      other.mass(r) * static_cast<double>(there[0]));
      for (Index j = 0; j < stride_; j += simd::kLanes) {
        float* to = values(r) + j;
        simd::store(to, simd::load(to) * here + simd::load(other.values(r) + j) * there);
      }
    }
  }

  static constexpr float kLowestPower = -1e38f;

 private:
  float *values_, *mass_, *power_;
  Index rows_, stride_;
};

}  // namespace detail
}  // namespace tersekv
