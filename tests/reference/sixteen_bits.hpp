// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "choice.hpp"

namespace reference {

/// A binary format of floating-point numbers: significant bits, and the exponent of the smallest
/// normal number, below which all are as far apart as there.
struct Format {
  int bits, least;
};
inline constexpr Format kHalf{11, -14}, kBFloat16{8, -126};

/// Each number of a key or value as the nearest of the format; of two equally near ones the one
/// with the even last bit. How far it is from that counts as a choice: a float32 replay may round
/// the other way.
inline void round_to(const Format& format, Vector& row, Margin& margin) {
  for (double& x : row) {
    if (x == 0) continue;
    const double unit = std::ldexp(1.0, std::max(std::ilogb(x), format.least) - format.bits + 1);
    const double steps = x / unit, over = std::fabs(steps) - std::floor(std::fabs(steps));
    margin.compare(over, 0.5, 1);
    x = std::nearbyint(steps) * unit;
  }
}

}  // namespace reference
