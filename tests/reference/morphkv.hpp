// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

enum class Fusion { sum, max };

/// The latest `recent` tokens and the older ones that their queries attended to most.
class MorphKV : public Policy {
 public:
  struct Options {
    Integer budget = 0;  // C + R
    Integer recent = 32;
    Fusion fusion = Fusion::sum;
    Integer interval = 1;
    Integer layer = 0;
    Integer uncompressed_layers = 0;
  };

  explicit MorphKV(const Options& options) : options_(options) {
    if (options.recent < 1 || options.budget < options.recent || options.interval < 1)
      throw std::invalid_argument("recent, budget or interval");
  }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    for (const Row& row : rows) {
      std::map<Integer, double> attention_by_position;
      for (std::size_t i = 0; i < row.group.size(); ++i)
        attention_by_position[cache.entries[i].position] = row.group[i];
      history_.push_back(attention_by_position);
      if (std::ssize(history_) > options_.recent) history_.pop_front();
    }
  }

  void compress(Cache& cache, Integer new_tokens) override {
    if (options_.layer < options_.uncompressed_layers) return;
    tokens_since_compression_ += new_tokens;
    if (tokens_since_compression_ < options_.interval) return;
    tokens_since_compression_ = 0;
    for (Entry& entry : cache.entries) entry.score = fused(entry.position);
    evict_lowest(cache, options_.budget,
                 [&](const Entry& entry) { return cache.among_latest(entry, options_.recent); });
  }

 private:
  /// An entry that did not exist when a row was written has 0 there.
  double fused(Integer position) const {
    double result = 0;
    for (const auto& row : history_) {
      const auto found = row.find(position);
      const double attention = found == row.end() ? 0 : found->second;
      result = options_.fusion == Fusion::sum ? result + attention : std::max(result, attention);
    }
    return result;
  }

  Options options_;
  std::deque<std::map<Integer, double>> history_;
  Integer tokens_since_compression_ = 0;
};

}  // namespace reference
