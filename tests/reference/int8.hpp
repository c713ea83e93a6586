// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "choice.hpp"

namespace reference {

/// How much further than usual a float32 replay may be off before it rounds.
#if defined(__FAST_MATH__)
inline constexpr double kLooseness = 10;
#else
inline constexpr double kLooseness = 1;
#endif

/// A key or value as whole numbers from -127 to 127, times a scale that makes the largest 127. How
/// far the nearest two of such numbers are from being equally near counts as a choice: a float32
/// replay may round the other way, of exactly equal ones, too.
inline void round_to_int8(Vector& row, Margin& margin) {
  double largest = 0;
  for (double x : row) largest = std::max(largest, std::fabs(x));
  if (largest == 0) return;
  const double scale = largest / 127;
  for (double& x : row) {
    const double steps = x / scale;
    const double over = std::fabs(steps) - std::floor(std::fabs(steps));
    margin.compare(0.5 + (over - 0.5) / kLooseness, 0.5, 1, true);
    x = std::round(steps) * scale;
  }
}

}  // namespace reference
