// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <stdexcept>
#include <tersekv/kv_cache.hpp>
#include <utility>

#include "conformance.hpp"

namespace conformance {

/// Any of the executors, chosen at run time.
class AnyExecutor {
 public:
  explicit AnyExecutor(Runs runs) : runs_(runs) {}
  int workers() const {
#if defined(_OPENMP)
    if (runs_ == Runs::openmp) return openmp_.workers();
#endif
    return runs_ == Runs::serially ? 1 : 3;
  }
  template <class F>
  void run(Index n, F&& f) const {
#if defined(_OPENMP)
    if (runs_ == Runs::openmp) return openmp_.run(n, f);
#endif
    if (runs_ == Runs::serially) return tersekv::SerialExecutor{}.run(n, f);
    // A permutation of the tasks without a list of them: steps of a prime beyond any n here.
    const Index start = random_.integer(0, n > 0 ? n - 1 : 0);
    for (Index i = 0; i < n; ++i) {
      f((start + i * 1'000'003) % n, static_cast<int>(random_.integer(0, 2)));
    }
  }

 private:
  Runs runs_;
  mutable support::Random random_{7};
#if defined(_OPENMP)
  tersekv::OpenMPExecutor openmp_{3};
#endif
};

template <class Policy, class K, class V>
class Model final : public AnyCache {
 public:
  using Cache = tersekv::KVCache<Policy, K, V, AnyExecutor>;

  explicit Model(Cache cache) : cache_(std::move(cache)) {}

  static std::unique_ptr<AnyCache> make(const CacheConfig& config, const Policy& policy,
                                        const Setup& setup) {
    const AnyExecutor executor(setup.runs);
    return std::make_unique<Model>(setup.pool != nullptr
                                       ? Cache(config, policy, *setup.pool, executor)
                                       : Cache(config, policy, executor, setup.resource));
  }

  void extend(std::span<const Chunk<float>> chunks, tersekv::ExtendOptions options) override {
    cache_.extend(chunks, options);
  }
  void append(Index sequence, const Chunk<float>& tokens) override {
    cache_.append(sequence, tokens.k, tokens.v, tokens.token_scores);
  }
  void rewind(Index sequence, Index tokens) override { cache_.rewind(sequence, tokens); }
  void copy(Index from, Index to) override { cache_.copy(from, to); }
  void attend(Index sequence, tersekv::TokenView<const float> q, tersekv::TokenView<float> out,
              tersekv::AttendOutputs outputs) override {
    cache_.attend(sequence, q, out, outputs);
  }
  void observe(Index sequence, const tersekv::AttentionRows<const float>& rows) override {
    if constexpr (Policy::observes != tersekv::Observes::logits) {
      cache_.observe(sequence, rows);
    } else {
      throw std::logic_error("observes logits");
    }
  }
  void observe(Index sequence, tersekv::TokenView<const float> last_queries) override {
    cache_.observe(sequence, last_queries);
  }
  void compress(Index sequence) override { cache_.compress(sequence); }
  void clear(Index sequence) override { cache_.clear(sequence); }
  void clear() override { cache_.clear(); }
  void trim() override { cache_.trim(); }
  Index length(Index sequence, Index h) const override { return cache_.length(sequence, h); }
  Index tokens_seen(Index sequence) const override { return cache_.tokens_seen(sequence); }
  tersekv::Counts counts(Index sequence, Index h) const override {
    return cache_.counts(sequence, h);
  }
  tersekv::Counts total_counts() const override { return cache_.total_counts(); }
  double keep_ratio() const override { return cache_.keep_ratio(); }
  std::vector<Entry> entries(Index sequence, Index h) const override {
    return cache_.entries(sequence, h);
  }
  tersekv::MemoryUsage memory() const override { return cache_.memory(); }
  const CacheConfig& config() const override { return cache_.config(); }
  tersekv::PagePool& pool() override { return cache_.pool(); }
  std::unique_ptr<AnyCache> clone() const override {
    return std::make_unique<Model>(cache_.clone());
  }
  std::unique_ptr<AnyCache> clone(tersekv::PagePool& pool) const override {
    return std::make_unique<Model>(cache_.clone(pool));
  }

 private:
  Cache cache_;
};

/// Enters a policy into the suite: a constant of this type at namespace scope is all it takes.
template <class Policy>
struct Join {
  Join(const Policy& policy, PolicyCase c) {
    using tersekv::BFloat16;
    using tersekv::Half;
    using tersekv::Int8;
    c.make = [policy](const CacheConfig& config, const Setup& setup) {
      switch (setup.storage) {
        case Storage::half_and_bfloat:
          return Model<Policy, Half, BFloat16>::make(config, policy, setup);
        case Storage::int8:
          return Model<Policy, Int8, Int8>::make(config, policy, setup);
        default:
          return Model<Policy, float, float>::make(config, policy, setup);
      }
    };
    c.needs_scores = Policy::needs_token_scores;
    c.takes_rows = Policy::observes != tersekv::Observes::logits;
    c.alpha = policy.alpha();
    policies().push_back(std::move(c));
  }
};

}  // namespace conformance
