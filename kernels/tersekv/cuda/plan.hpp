// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/config.hpp"

namespace tersekv::cuda {

/// How a launch is shaped; changes speed alone. Zero or kAuto: as measured and planned.
struct Tuning {
  int splits = 0;             ///< of a head's entries in attention
  int least_tiles = 1;        ///< of a split
  Index plan_length = kAuto;  ///< entries of the longest head to plan for; kAuto: what the host
                              ///< knows. A captured graph is planned once, for all its replays.
  int team_blocks = 0;      ///< blocks per head in a policy's step: 1 to 8
  Index observed_rows = 4;  ///< of a prompt, in one launch; each costs logits for all heads
};

/// Tiles that a split costs beside its own: starting, and being joined.
inline constexpr double kSplitCost = 2.0;

/// The number of splits that minimises waves * (tiles per split + kSplitCost), for `blocks` blocks
/// a split of the longest head, of `tiles` tiles, with `resident` blocks at a time on the device;
/// no more than `most`. One where nothing is gained.
inline int choose_splits(Index tiles, Index blocks, Index resident, Index most) {
  int best = 1;
  double best_cost = 0;
  for (Index splits = 1; splits <= std::min({tiles, most, Index{256}}); ++splits) {
    const Index waves = (blocks * splits + resident - 1) / resident;
    const Index per_split = (tiles + splits - 1) / splits;
    const double cost = static_cast<double>(waves) * (static_cast<double>(per_split) + kSplitCost) +
                        (splits > 1 ? kSplitCost : 0.0);
    if (splits == 1 || cost < best_cost) {
      best = static_cast<int>(splits);
      best_cost = cost;
    }
  }
  return best;
}

/// Blocks that work on one head in a policy's step: one where the heads fill the device, more for
/// long heads.
inline int choose_team(Index heads, Index length, Index multiprocessors, int most) {
  int team = 1;
  while (2 * team <= most && heads * 2 * team <= multiprocessors && length >= 4096 * team) {
    team *= 2;
  }
  return team;
}

}  // namespace tersekv::cuda
