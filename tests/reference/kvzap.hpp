// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// Entries whose given score is below the threshold leave once they are not among the latest
/// `window` tokens. `Token::score` is the score; no budget, and no margin either:
/// the scores are given, so nothing is rounded.
class KVzap : public Policy {
 public:
  struct Options {
    double threshold = 0;
    Integer window = 128;
  };

  explicit KVzap(const Options& options) : options_(options) {
    if (options.window < 0) throw std::invalid_argument("negative window");
  }

  void compress(Cache& cache, Integer) override {
    std::vector<std::size_t> victims;
    for (std::size_t i = 0; i < cache.entries.size(); ++i) {
      const Entry& entry = cache.entries[i];
      if (!cache.among_latest(entry, options_.window) && entry.score < options_.threshold)
        victims.push_back(i);
    }
    cache.evict(victims);
  }

 private:
  Options options_;
};

/// Weights [out][in] and bias [out].
struct Layer {
  std::vector<Vector> weight;
  Vector bias;

  Vector apply(const Vector& input) const {
    Vector output;
    for (std::size_t o = 0; o < weight.size(); ++o)
      output.push_back(dot(weight[o], input) + bias[o]);
    return output;
  }
};

inline double gelu(double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); }

/// Predicted log-score per KV head: one layer is linear, two are an MLP with exact GELU between.
inline Vector surrogate_scores(const std::vector<Layer>& layers, const Vector& hidden) {
  Vector activation = layers.at(0).apply(hidden);
  for (std::size_t l = 1; l < layers.size(); ++l) {
    for (double& x : activation) x = gelu(x);
    activation = layers[l].apply(activation);
  }
  return activation;
}

}  // namespace reference
