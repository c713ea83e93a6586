// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/fused_window_attention.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// MorphKV (Ghadia et al. 2025, arXiv 2503.00979): constant size, the latest R tokens and the
/// budget - R older ones to which those R attended most, by the sum or the maximum of their rows.
struct MorphKV : Policy<FusedWindowAttention, LowestScore, Drop> {
  using Policy::Policy;
  MorphKV();  ///< with the defaults
};

struct MorphKVOptions {
  Index recent = 32;  ///< R, 1 to 4096, at most the budget
  Fusion fusion = Fusion::sum;
  Index interval = 1;             ///< evict every so many tokens; up to interval - 1 beyond budget
  Index uncompressed_layers = 0;  ///< first layers left alone (3 in the paper's ablation), as
                                  ///< CacheConfig::layer counts them
};

inline MorphKV make_morphkv(const MorphKVOptions& options = {}) {
  FusedWindowAttention scorer;
  scorer.fusion = options.fusion;
  scorer.window = options.recent;
  LowestScore selector;
  selector.protection.recent = options.recent;
  selector.interval = options.interval;
  selector.uncompressed_layers = options.uncompressed_layers;
  return MorphKV(scorer, selector);
}
inline MorphKV::MorphKV() : MorphKV(make_morphkv()) {}

}  // namespace tersekv
