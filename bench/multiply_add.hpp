// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tersekv/simd.hpp>

#include "axes.hpp"

namespace tersekv::bench {

/// Chains of multiplications and additions that depend on nothing but themselves: enough of them to
/// hide the latency, few enough for the registers. `seed` sets them apart. Returns how many
/// operations on floats that was, two for each lane and turn of a chain.
inline double multiply_add_in_registers(int seed) {
  constexpr int kChains = 10;
  constexpr Index kTurns = 1 << 18;
  simd::Floats chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = simd::broadcast(static_cast<float>(c + seed));
  const simd::Floats factor = simd::broadcast(0.999f), term = simd::broadcast(1e-3f);
  for (Index turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) chains[c] = chains[c] * factor + term;
  }
  for (int c = 0; c < kChains; ++c) {
    float sum = simd::sum(chains[c]);
    asm volatile("" : : "m"(sum));
  }
  return 2.0 * simd::kLanes * kChains * static_cast<double>(kTurns);
}

}  // namespace tersekv::bench
