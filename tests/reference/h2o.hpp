// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// Cumulative group attention; the latest `recent` tokens stay, the lowest of the others leave.
class H2O : public Policy {
 public:
  struct Options {
    Integer budget = 0;
    Integer recent = kAuto;  // ceil(B/2)
  };

  explicit H2O(const Options& options) : options_(options) {
    if (options.budget < 1) throw std::invalid_argument("budget must be positive");
    if (options_.recent == kAuto) options_.recent = (options.budget + 1) / 2;
    if (options_.recent > options.budget) throw std::invalid_argument("recent over budget");
  }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    for (const Row& row : rows)
      for (std::size_t i = 0; i < row.group.size(); ++i) cache.entries[i].score += row.group[i];
  }

  void compress(Cache& cache, Integer) override {
    evict_lowest(cache, options_.budget,
                 [&](const Entry& entry) { return cache.among_latest(entry, options_.recent); });
  }

 private:
  Options options_;
};

}  // namespace reference
