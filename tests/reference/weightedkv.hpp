// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// The key of the lowest average attention goes, its value flows into the right neighbour.
class WeightedKV : public Policy {
 public:
  struct Options {
    Integer budget = 0;
    Integer sinks = 4;
    Integer recent = kAuto;  // max(1, floor(B/2) - 4)
  };

  explicit WeightedKV(const Options& options) : options_(options) {
    if (options.budget < 6) throw std::invalid_argument("budget below 6");
    if (options_.recent == kAuto)
      options_.recent = std::max<Integer>(1, options.budget / 2 - options.sinks);
    if (options_.recent < 1 || options_.sinks + options_.recent > options.budget)
      throw std::invalid_argument("protected entries over budget");
  }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    for (const Row& row : rows) {
      for (std::size_t i = 0; i < row.group.size(); ++i) {
        cache.entries[i].score += row.group[i];
        cache.entries[i].queries += 1;
      }
    }
  }

  static double average(const Entry& entry) {
    return entry.score / static_cast<double>(entry.queries);
  }

  void compress(Cache& cache, Integer) override {
    while (cache.size() > options_.budget) {
      Vector scores;
      std::vector<std::size_t> candidates;
      for (std::size_t i = 0; i < cache.entries.size(); ++i) {
        const Entry& entry = cache.entries[i];
        if (entry.position < options_.sinks || cache.among_latest(entry, options_.recent)) continue;
        scores.push_back(average(entry));
        candidates.push_back(i);
      }
      const std::size_t victim = candidates[choose_one_lowest(scores, cache.margin)];
      const Entry& leaving = cache.entries[victim];
      Entry& neighbour = cache.entries[victim + 1];  // exists: the latest entries never leave
      double share = average(leaving), kept = average(neighbour);
      if (share == 0 && kept == 0) share = kept = 1;
      for (std::size_t x = 0; x < leaving.value.size(); ++x)
        neighbour.value[x] =
            (share * leaving.value[x] + kept * neighbour.value[x]) / (share + kept);
      cache.stored(neighbour.value);
      cache.events.push_back({cache.tokens_seen, leaving.position, neighbour.position});
      cache.entries.erase(cache.entries.begin() + static_cast<std::ptrdiff_t>(victim));
    }
  }

 private:
  Options options_;
};

}  // namespace reference
