// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// What a head knows of itself; the numbers of live entries and of tokens seen differ by what the
/// policy evicted and merged.
struct HeadState {
  Index length = 0;   ///< live entries
  Index seen = 0;     ///< tokens ever appended; the next one's position
  Index pinned = 0;   ///< slots [0, pinned) belong to the merger and are never victims
  Index fresh = 0;    ///< tokens appended since the last compression; they hold the last slots
  Index prompt = 0;   ///< those of them that came several at a time
  Index waiting = 0;  ///< tokens appended since the selector last acted; LowestScore resets it
  Index budget = kUnlimited;
  Counts counts;
  std::int32_t newest = 0;     ///< tokens of the latest append
  std::int32_t before_it = 0;  ///< and of the one before, which it is again once all of that is
                               ///< taken back: no more can be, and this is kTakenBack
  static constexpr std::int32_t kTakenBack = -1;

  /// What an append changes beside `length`.
  TERSEKV_HD void note_append(Index tokens) {
    seen += tokens;
    fresh += tokens;
    prompt += tokens > 1 ? tokens : 0;
    if (tokens > 0) {
      before_it = newest;
      newest = static_cast<std::int32_t>(tokens);
    }
    waiting += tokens;
  }
  /// How many of the latest tokens may be taken back.
  TERSEKV_HD Index most_rewound() const {
    if (before_it == kTakenBack) return 0;
    return fresh < newest ? fresh : newest;
  }
  /// What taking back the latest tokens changes beside `length`: as if their append had not brought
  /// them.
  TERSEKV_HD void note_rewind(Index tokens) {
    if (tokens == 0) return;
    const Index left = newest - tokens;
    prompt -= (newest > 1 ? newest : 0) - (left > 1 ? left : 0);
    newest = left > 0 ? static_cast<std::int32_t>(left) : before_it;
    if (left == 0) before_it = kTakenBack;
    seen -= tokens;
    fresh -= tokens;
    waiting -= tokens;
  }
  /// What a compression leaves behind.
  TERSEKV_HD void note_compression() { fresh = prompt = 0; }
};

}  // namespace tersekv
