// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "attention.hpp"

namespace reference {

/// How close any choice has come to going the other way: a float32 replay may legitimately differ
/// from the first choice on whose margin is of the order of its rounding errors.
struct Margin {
  double smallest = std::numeric_limits<double>::max();  // no choice yet
  Integer exact_ties = 0;  // broken by position, no matter of rounding

  /// Relative gap of two compared scores. `unit` is the size that rounding acts on where that is
  /// larger than the scores (1 for a cosine, |a||b| for a dot product). Below 1e-30 a float32
  /// attention share may be denormal or zero, so gaps down there count for nothing. `rounded`: the
  /// scores come from numbers that were worked out, so being equal here says nothing of a float32
  /// replay, and a tie is as unclear as a near one.
  void compare(double chosen, double other, double unit = 0, bool rounded = false) {
    if (chosen == other && !rounded) {
      ++exact_ties;
      return;
    }
    const double size = std::max({std::fabs(chosen), std::fabs(other), unit, 1e-30});
    smallest = std::min(smallest, std::fabs(chosen - other) / size);
  }
};

/// Index of the highest score; the first of equals. `rounded`: per score, see Margin::compare;
/// empty if none is.
inline std::size_t choose_highest(const Vector& scores, Margin& margin, double unit = 0,
                                  const std::vector<bool>& rounded = {}) {
  if (scores.empty()) throw std::logic_error("no candidates");
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i)
    if (scores[i] > scores[best]) best = i;
  const auto is_rounded = [&](std::size_t i) { return !rounded.empty() && rounded[i]; };
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (i != best) margin.compare(scores[best], scores[i], unit, is_rounded(best) || is_rounded(i));
  return best;
}

/// Indices of the `count` lowest scores, ascending; of equals the first go. The order among the
/// chosen is no choice, so only gaps between chosen and spared ones count for the margin.
inline std::vector<std::size_t> choose_lowest(const Vector& scores, Integer count, Margin& margin,
                                              double unit = 0) {
  if (count > std::ssize(scores)) throw std::logic_error("more victims than candidates");
  std::vector<bool> chosen(scores.size(), false);
  for (Integer n = 0; n < count; ++n) {
    std::size_t lowest = scores.size();
    for (std::size_t i = 0; i < scores.size(); ++i)
      if (!chosen[i] && (lowest == scores.size() || scores[i] < scores[lowest])) lowest = i;
    chosen[lowest] = true;
  }
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!chosen[i]) continue;
    indices.push_back(i);
    for (std::size_t j = 0; j < scores.size(); ++j)
      if (!chosen[j]) margin.compare(scores[i], scores[j], unit);
  }
  return indices;
}

inline std::size_t choose_one_lowest(const Vector& scores, Margin& margin, double unit = 0) {
  return choose_lowest(scores, 1, margin, unit).at(0);
}

}  // namespace reference
