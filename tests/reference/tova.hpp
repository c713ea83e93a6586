// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// The lowest group attention of the current query (a chunk's last) leaves; the newest token stays.
class TOVA : public Policy {
 public:
  struct Options {
    Integer budget = 0;
  };

  explicit TOVA(const Options& options) : options_(options) {
    if (options.budget < 1) throw std::invalid_argument("budget must be positive");
  }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    for (std::size_t i = 0; i < cache.entries.size(); ++i)
      cache.entries[i].score = rows.back().group[i];
  }

  void compress(Cache& cache, Integer) override {
    evict_lowest(cache, options_.budget,
                 [&](const Entry& entry) { return cache.among_latest(entry, 1); });
  }

 private:
  Options options_;
};

}  // namespace reference
