// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/latest_attention.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// TOVA (Oren et al. 2024, arXiv 2401.06104): whoever the current query attends to least leaves.
/// Here per KV head (the published code has one choice for all heads); the newest token stays.
struct TOVA : Policy<LatestAttention, LowestScore, Drop> {
  using Policy::Policy;
  TOVA();  ///< with the defaults
};

inline TOVA make_tova() {
  LowestScore selector;
  selector.protection.recent = 1;
  return TOVA(LatestAttention{}, selector);
}
inline TOVA::TOVA() : TOVA(make_tova()) {}

}  // namespace tersekv
