// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "tersekv/config.hpp"

namespace tersekv::cuda {

/// How a launch is shaped. Zero or kAuto: as measured and planned. It changes speed, and of results
/// what rounding does: sums are added up in as many parts as there are splits. How many are planned
/// depends on the device, on all heads of the call, and on what the host knows of their lengths;
/// who must have the same bits again gives `splits` and `plan_length`.
struct Tuning {
  int splits = 0;             ///< of the longest head's entries in attention
  Index plan_length = kAuto;  ///< entries of every head to plan for; kAuto: what the host knows of
                              ///< each. A captured graph is planned once, for all its replays.
  int team_blocks = 0;        ///< blocks per head in appends and a policy's steps: 1 to 8. They
                              ///< meet in a microsecond: for keys to compare and very long heads.
  Index observed_rows = 4;    ///< of a prompt, in one launch; each costs logits for all heads
};

/// Heads, and tokens of a sequence, in one launch, at most: a grid's extents beside the first have
/// 16 bits.
inline constexpr Index kMostHeads = 65535, kMostRowsAtOnce = 32768;

/// Query heads of a group, at most.
inline constexpr Index kMostGroup = 16;

/// Tiles that a split costs beside its own: starting, and being joined.
inline constexpr double kSplitCost = 2.0;

/// How attention's entries are cut.
struct Splits {
  int count = 1;       ///< of the longest head
  int tiles_each = 1;  ///< at most; a shorter head has fewer splits, not smaller ones
};

/// The cut that minimises waves * (tiles per split + kSplitCost), over heads of `tiles` tiles each,
/// `blocks` blocks a split, with `resident` blocks at a time on the device; no more than `most`
/// splits of a head. One where nothing is gained. O(heads) where heads have few different lengths.
inline Splits choose_splits(const std::vector<Index>& tiles, Index blocks, Index resident,
                            Index most) {
  std::vector<std::pair<Index, Index>> heads_of;  // (tiles, heads): mostly one or a few
  for (Index of_head : tiles) {
    const Index count = std::max<Index>(of_head, 1);
    const auto same = std::find_if(heads_of.begin(), heads_of.end(),
                                   [&](const auto& known) { return known.first == count; });
    if (same == heads_of.end()) {
      heads_of.emplace_back(count, 1);
    } else {
      ++same->second;
    }
  }
  const Index longest = std::max_element(heads_of.begin(), heads_of.end())->first;
  Splits best{1, static_cast<int>(longest)};
  double best_cost = 0;
  for (Index splits = 1; splits <= std::min({longest, most, Index{256}}); ++splits) {
    const Index each = (longest + splits - 1) / splits;
    Index parts = 0;
    for (const auto& [of_head, heads] : heads_of) parts += heads * ((of_head + each - 1) / each);
    const Index waves = (parts * blocks + resident - 1) / resident;
    const double cost = static_cast<double>(waves) * (static_cast<double>(each) + kSplitCost) +
                        (splits > 1 ? kSplitCost : 0.0);
    if (splits == 1 || cost < best_cost) {
      best = {static_cast<int>(splits), static_cast<int>(each)};
      best_cost = cost;
    }
  }
  return best;
}

/// Partial states to have room for: splits for a few waves of the device, of many heads some 32
/// each, but never more than heads have tiles.
inline Index parts_wanted(Index heads, Index group, Index most_tiles, Index multiprocessors) {
  const Index splits = std::max(8 * multiprocessors, std::min<Index>(32 * heads, 8192));
  return group * heads * std::min(most_tiles + 1, 1 + splits / heads);
}

/// Things to do for a head from which it gets a second block. What is done for every entry of a
/// step is little and comes between barriers, which take a team of several blocks a microsecond
/// each; keys to compare, and tokens to append, are more.
inline constexpr Index kItemsOfBlock = 4096, kNumbersOfBlock = 32768;

/// Blocks that work on one head in a policy's step or an append, with `items` to do, `of_block` and
/// more for each: one where the heads fill the device, more for long heads.
inline int choose_team(Index heads, Index items, Index of_block, Index multiprocessors, int most) {
  int team = 1;
  while (2 * team <= most && heads * 2 * team <= multiprocessors && items >= of_block * team) {
    team *= 2;
  }
  return team;
}

}  // namespace tersekv::cuda
