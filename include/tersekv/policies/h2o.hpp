// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/cumulative_attention.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// H2O (Zhang et al. 2023, arXiv 2306.14048): the latest tokens and the heavy hitters, those with
/// the highest attention summed over all queries so far.
struct H2O : Policy<CumulativeAttention, LowestScore, Drop> {
  using Policy::Policy;
  H2O();  ///< with the defaults
};

struct H2OOptions {
  Index recent = kAuto;  ///< latest tokens protected; kAuto: ceil(budget / 2)
};

inline H2O make_h2o(const H2OOptions& options = {}) {
  LowestScore selector;
  selector.protection = {.recent = options.recent, .rule = Protection::Rule::half_rounded_up};
  return H2O(CumulativeAttention{}, selector);
}
inline H2O::H2O() : H2O(make_h2o()) {}

}  // namespace tersekv
