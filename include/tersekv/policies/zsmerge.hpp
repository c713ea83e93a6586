// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/residual_slots.hpp"
#include "tersekv/scorers/decayed_attention.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// ZSMerge (Liu et al. 2025, arXiv 2503.10714): a budget in three parts, B = B_p + B_c + B_r. The
/// latest B_p tokens (proximity), the B_c best-scored older ones (context), and B_r slots into
/// which everything else is averaged (residual), compensated for in attention. For alpha in [0, 1]
/// no uncompressed entry's attention is below that in the full cache (the paper's Theorem 1), and
/// the weights sum to the tokens seen (a slot's weight, a float, stops at 2^24).
///
/// Follows the paper's Algorithm 1: the token that has just left proximity may be the victim (the
/// published code exempts it). residual = 0 is pure eviction.
struct ZSMerge : Policy<DecayedAttention, LowestScore, ResidualSlots> {
  using Policy::Policy;
  ZSMerge();  ///< with the defaults
};

struct ZSMergeOptions {
  Index proximity = kAuto;  ///< B_p >= 1; kAuto: floor(budget / 2), 0 for a budget of 1
  Index residual = kAuto;   ///< B_r >= 0; kAuto: 2 % of budget - B_p, rounded, at least 1
  float decay = 0.98f;      ///< lambda, 0 to 1
  float alpha = 1.0f;       ///< exponent of the weights in attention, 0 to 1
  Index window = 8;         ///< last queries of a prompt that set the scores, >= 1
};

inline ZSMerge make_zsmerge(const ZSMergeOptions& options = {}) {
  DecayedAttention scorer;
  scorer.decay = options.decay;
  scorer.window = options.window;
  LowestScore selector;
  selector.protection.recent = options.proximity;
  ResidualSlots merger;
  merger.residual = options.residual;
  merger.proximity = options.proximity;
  merger.compensation = options.alpha;
  return ZSMerge(scorer, selector, merger);
}
inline ZSMerge::ZSMerge() : ZSMerge(make_zsmerge()) {}

}  // namespace tersekv
