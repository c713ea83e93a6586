// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/right_neighbour.hpp"
#include "tersekv/scorers/mean_attention.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// WeightedKV (Yuan et al. 2025, arXiv 2503.01330): drops the key of the token with the lowest
/// average attention and merges its value into its right neighbour's, weighted by their averages.
/// Plain softmax.
struct WeightedKV : Policy<MeanAttention, LowestScore, RightNeighbour> {
  using Policy::Policy;
  WeightedKV();  ///< with the defaults
};

struct WeightedKVOptions {
  Index sinks = 4;       ///< first tokens protected, >= 0
  Index recent = kAuto;  ///< latest tokens protected; kAuto: max(1, floor(budget / 2) - sinks)
};

/// A budget is at least 6.
inline WeightedKV make_weightedkv(const WeightedKVOptions& options = {}) {
  LowestScore selector;
  selector.protection = {
      .sinks = options.sinks, .recent = options.recent, .rule = Protection::Rule::half_less_sinks};
  return WeightedKV(MeanAttention{}, selector);
}
inline WeightedKV::WeightedKV() : WeightedKV(make_weightedkv()) {}

}  // namespace tersekv
