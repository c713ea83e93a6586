// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// The first `sinks` tokens and the latest ones.
class StreamingLLM : public Policy {
 public:
  struct Options {
    Integer budget = 0;
    Integer sinks = 4;
  };

  explicit StreamingLLM(const Options& options) : options_(options) {
    if (options.budget <= options.sinks) throw std::invalid_argument("budget within the sinks");
  }

  void compress(Cache& cache, Integer) override {
    const Integer latest = options_.budget - options_.sinks;
    std::vector<std::size_t> victims;
    for (std::size_t i = 0; i < cache.entries.size(); ++i) {
      const Entry& entry = cache.entries[i];
      if (entry.position >= options_.sinks && !cache.among_latest(entry, latest))
        victims.push_back(i);
    }
    cache.evict(victims);
  }

 private:
  Options options_;
};

}  // namespace reference
