// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "tersekv/portability.hpp"

namespace tersekv::detail {

/// e^x for x <= 0. Far below float's range the argument is cut off, and above 0 too: the vectorised
/// exp that -ffast-math may choose is not defined for every float, and reassociated differences of
/// huge logits may come out above 0.
TERSEKV_HD inline float exp_of_negative(float x) {
  const float capped = x < 0.0f ? x : 0.0f;
  return std::exp(capped > -100.0f ? capped : -100.0f);
}

/// ln(e^a + e^b) without overflow; absolute error below 2e-7 beside the rounding of the result
/// (what log1p would add to that is not worth its price: this runs for every entry of every step).
TERSEKV_HD inline float log_add(float a, float b) {
  const float high = a > b ? a : b, low = a > b ? b : a;
  return high + std::log(1.0f + exp_of_negative(low - high));
}

/// share ln(share / prior), 0 for a share of 0: one term of a Kullback-Leibler divergence.
TERSEKV_HD inline float relative_entropy(float share, float prior) {
  return share > 0 ? share * std::log(share / prior) : 0.0f;
}

/// ln(1 - decay^queries): what an exponential average over `queries` values lacks. 0 for none.
TERSEKV_HD inline float log_missing(float log_decay, int queries) {
  const float exponent = static_cast<float>(queries) * log_decay;
  // Beyond e^-20 it is below float's resolution.
  if (queries == 0 || exponent < -20.0f) return 0.0f;
  return std::log(-std::expm1(exponent));
}

}  // namespace tersekv::detail
