// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/pooled_window_attention.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// SnapKV (Li et al. 2024, arXiv 2404.14469): at the end of a prompt (or of a chunk of one) keeps
/// its last `window` tokens and the entries these attended to most, after pooling over neighbours.
/// Single tokens evict nothing, so the cache grows while decoding. Tokens that come several at a
/// time are taken for a prompt: who decodes so (by guesses, or forced ones) compresses after the
/// prompt alone, with `ExtendOptions::compress_every` kNever and without `compress` from then on. A
/// prompt's last chunk has two tokens or more; a single one shows it nothing.
struct SnapKV : Policy<PooledWindowAttention, LowestScore, Drop> {
  using Policy::Policy;
  SnapKV();  ///< with the defaults
};

struct SnapKVOptions {
  Index window = 32;  ///< >= 1, at most the budget
  Index kernel = 7;   ///< odd
};

inline SnapKV make_snapkv(const SnapKVOptions& options = {}) {
  PooledWindowAttention scorer;
  scorer.window = options.window;
  scorer.kernel = options.kernel;
  LowestScore selector;
  selector.protection.recent = options.window;
  selector.prompts_only = true;
  return SnapKV(scorer, selector);
}
inline SnapKV::SnapKV() : SnapKV(make_snapkv()) {}

}  // namespace tersekv
