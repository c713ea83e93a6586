// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "axes.hpp"
#include "tersekv/element.hpp"

// What caches are filled with, and the double loop that their attention is checked against.
namespace tersekv::bench {

/// Random tokens, a function of (seed, position, layer): queries, keys and values of variance 1,
/// scores uniform in [0, 1).
class Tokens {
 public:
  explicit Tokens(const Heads& heads, Index count = 1)
      : heads_(heads),
        count_(count),
        q_(size(heads.kv * heads.group * heads.dim)),
        k_(size(heads.kv * heads.dim)),
        v_(size(heads.kv * heads.dim)),
        scores_(size(heads.kv)) {}

  /// From now on queries are as a model that computes in T has them.
  template <StoredElement T>
  void round_queries_to() {
    if constexpr (!Codec<T>::scaled) round_ = [](float x) { return to_float(from_float<T>(x)); };
  }

  void draw(Index first, Index count, Index layer = 0) {
    drawn_ = count;
    for (Index t = 0; t < count; ++t) {
      state_ = kSeed ^ static_cast<std::uint64_t>((first + t) << 8 | layer) * 0xd1342543de82ef95u;
      for (std::vector<float>* part : {&k_, &v_, &q_}) {
        const Index width = static_cast<Index>(part->size()) / count_;
        const auto round = part == &q_ ? round_ : as_drawn;
        for (Index i = 0; i < width; ++i) {
          part->data()[t * width + i] = round(1.7320508f * uniform());
        }
      }
      for (Index h = 0; h < heads_.kv; ++h) {
        scores_[static_cast<std::size_t>(t * heads_.kv + h)] = uniform() / 2 + 0.5f;
      }
    }
  }
  TokenView<const float> q() const {
    return nhd_view(q_.data(), drawn_, heads_.kv * heads_.group, heads_.dim);
  }
  TokenView<const float> k() const { return nhd_view(k_.data(), drawn_, heads_.kv, heads_.dim); }
  TokenView<const float> v() const { return nhd_view(v_.data(), drawn_, heads_.kv, heads_.dim); }
  std::size_t q_size() const { return q_.size(); }
  ScoreView scores() const { return {scores_.data(), heads_.kv}; }

 private:
  std::size_t size(Index width) const { return static_cast<std::size_t>(count_ * width); }
  static float as_drawn(float x) { return x; }
  float uniform() {  // [-1, 1), splitmix64
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = (state_ ^ state_ >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<float>((z ^ z >> 31) >> 40) * 0x1p-23f - 1.0f;
  }
  Heads heads_;
  Index count_, drawn_ = 0;
  std::vector<float> q_, k_, v_, scores_;
  float (*round_)(float) = as_drawn;
  std::uint64_t state_ = 0;
};

/// Largest difference between `out`, the attention of the last q.tokens tokens, and a plain double
/// loop over the entries that token `t` of them sees, the last if -1, of the last KV head; no
/// number if `out` has one that is none. Of others than the last only where no entry has left.
template <class Cache>
double attention_error(Cache& cache, const TokenView<const float>& q,
                       const TokenView<const float>& out, Index t = -1) {
  if (t < 0) t = q.tokens - 1;
  const Index seen = cache.tokens_seen(0) - (q.tokens - 1 - t);
  const Index h = cache.config().num_kv_heads - 1;
  const Index group = cache.config().num_q_heads / cache.config().num_kv_heads;
  const std::vector<Entry> entries = cache.entries(0, h);
  double error = 0;
  for (Index head = h * group; head < (h + 1) * group; ++head) {
    double total = 0;
    std::vector<double> expected(static_cast<std::size_t>(q.head_dim));
    for (const Entry& entry : entries) {
      if (entry.position >= seen) continue;
      double logit = 0;
      for (Index j = 0; j < q.head_dim; ++j) {
        logit += double{q(t, head, j)} * double{entry.key[static_cast<std::size_t>(j)]};
      }
      logit /= std::sqrt(static_cast<double>(q.head_dim));
      const double share = std::exp(logit) * std::pow(entry.weight, cache.policy().alpha());
      total += share;
      for (std::size_t j = 0; j < expected.size(); ++j) expected[j] += share * entry.value[j];
    }
    for (Index j = 0; j < q.head_dim; ++j) {
      const double difference = out(t, head, j) - expected[static_cast<std::size_t>(j)] / total;
      if (!(std::abs(difference) <= error)) error = std::abs(difference);  // no number stays
      if (std::isnan(error)) return error;
    }
  }
  return error;
}
/// The larger of two errors, or the one that is no number.
inline double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }
/// Attention outputs here are averages of values of variance 1.
inline constexpr double kTolerance = 2e-4;

}  // namespace tersekv::bench
