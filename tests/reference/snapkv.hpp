// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// Average over `kernel` neighbours, zeros beyond the ends, always divided by `kernel`.
inline Vector average_pool(const Vector& scores, Integer kernel) {
  Vector pooled(scores.size(), 0);
  for (Integer i = 0; i < std::ssize(scores); ++i) {
    for (Integer j = i - kernel / 2; j <= i + kernel / 2; ++j)
      if (j >= 0 && j < std::ssize(scores))
        pooled[static_cast<std::size_t>(i)] += scores[static_cast<std::size_t>(j)];
    pooled[static_cast<std::size_t>(i)] /= static_cast<double>(kernel);
  }
  return pooled;
}

/// At the end of a prompt, the last `window` tokens stay and the entries that their queries
/// attended to most, after pooling. Decoding evicts nothing.
class SnapKV : public Policy {
 public:
  struct Options {
    Integer budget = 0;
    Integer window = 32;
    Integer kernel = 7;
  };

  explicit SnapKV(const Options& options) : options_(options) {
    if (options.budget < options.window) throw std::invalid_argument("window over budget");
    if (options.kernel < 1 || options.kernel % 2 == 0) throw std::invalid_argument("even kernel");
  }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    for (Entry& entry : cache.entries) entry.score = 0;
    for (Integer r = std::max<Integer>(0, std::ssize(rows) - options_.window); r < std::ssize(rows);
         ++r) {
      const Vector& attention = rows[static_cast<std::size_t>(r)].group;
      for (std::size_t i = 0; i < attention.size(); ++i) cache.entries[i].score += attention[i];
    }
  }

  void compress(Cache& cache, Integer new_tokens) override {
    if (new_tokens <= 1 || cache.size() <= options_.budget) return;
    Vector scores;
    for (const Entry& entry : cache.entries)
      if (!cache.among_latest(entry, options_.window)) scores.push_back(entry.score);
    // Entries are in order of position, so those outside the window come first.
    cache.evict(choose_lowest(average_pool(scores, options_.kernel), cache.size() - options_.budget,
                              cache.margin));
  }

 private:
  Options options_;
};

}  // namespace reference
