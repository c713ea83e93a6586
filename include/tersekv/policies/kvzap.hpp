// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/token_score.hpp"
#include "tersekv/selectors/below_threshold.hpp"

namespace tersekv {

/// KVzap (Jegou and Jeblick 2026, arXiv 2601.07891): a surrogate predicts each token's log-score
/// from the layer's hidden state when the token is appended (`Surrogate`, or any other source of
/// `Chunk::token_scores`); a token below the threshold leaves once it is no longer among the latest
/// `window`. No budget: how much is kept depends on the input, per head. Not here: the training of
/// surrogates, and the oracle that they learn from.
struct KVzap : Policy<TokenScore, BelowThreshold, Drop> {
  using Policy::Policy;
  KVzap();  ///< with the defaults
};

struct KVzapOptions {
  float threshold = -4.0f;  ///< of the surrogate's log-scores; chosen by their spread
  Index window = 128;       ///< latest tokens protected, >= 0
};

inline KVzap make_kvzap(const KVzapOptions& options = {}) {
  BelowThreshold selector;
  selector.threshold = options.threshold;
  selector.protection.recent = options.window;
  return KVzap(TokenScore{}, selector);
}
inline KVzap::KVzap() : KVzap(make_kvzap()) {}

}  // namespace tersekv
