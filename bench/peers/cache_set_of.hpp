// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cache_set.hpp"
#include "timed_policy.hpp"

namespace tersekv::peers {

/// Of "full", "weighted" and "similarity", which are measured with all; the other policies have
/// bfloat16.
inline constexpr const char* kElements = "float32 float16 bfloat16 int8";

/// Copies of one layer's cache, all in the same state and on one pool, as an engine's layers are,
/// and what is timed on them.
template <class PolicyType, class T>
class CacheSet final : public AnySet {
 public:
  using Cache = KVCache<TimedPolicy<PolicyType>, T, T, Threads>;

  CacheSet(const SetShape& shape, const PolicyType& policy)
      : CacheSet(shape, policy, make_pool(shape)) {
    bench::Tokens chunk(shape.heads(), std::min<Index>(kFillChunk, shape.tokens));
    for (Index first = 0; first < shape.tokens; first += kFillChunk) {
      const Index count = std::min(kFillChunk, shape.tokens - first);
      chunk.draw(first, count);
      bench::append_tokens(start_, chunk);
      if constexpr (PolicyType::observes != Observes::nothing) {
        const Index seen = std::min<Index>(32, count);
        start_.observe(0, chunk.q().rows(count - seen, seen));
      }
      start_.compress(0);
    }
    refresh();
  }

  std::unique_ptr<AnySet> clone() const override {
    auto pool = make_pool(shape_);  // its own, whose lists count as the copy's
    auto copy = std::unique_ptr<CacheSet>(new CacheSet(shape_, caches_[0].clone(*pool), pool));
    copy->refresh();
    return copy;
  }

  void weigh(std::uint64_t seed) override {
    if constexpr (PolicyType::uses_weights) {
      std::uint64_t state = seed;
      for (Index h = 0; h < shape_.kv_heads; ++h) {
        const auto head = start_.mutable_head(0, h);
        for (Index i = 0; i < head.length(); ++i) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          head.set_weight(i, 0.5f + 7.5f * static_cast<float>(state >> 40) * 0x1p-24f);
        }
      }
      refresh();
    } else {
      throw std::invalid_argument("weigh: the policy has no weights");
    }
  }

  Index length(Index kv_head) const override { return caches_.at(0).length(0, kv_head); }
  /// Of one copy, with its share of what the pool holds for all.
  MemoryUsage memory() const override {
    MemoryUsage usage = caches_.at(0).memory();
    usage.workspace += pool_->scratch_bytes() / shape_.copies;
    usage.slack += (pool_->idle_bytes() - pool_->scratch_bytes()) / shape_.copies;
    return usage;
  }
  void query(float* q) override {
    token_.draw(start_.tokens_seen(0), 1);
    std::copy_n(token_.q().data, token_.q_size(), q);
  }
  void export_to(Index copy, Index kv_head, float* k, float* v, float* weights) const override {
    const auto head = cache(copy).head(0, kv_head);
    for (Index i = 0; i < head.length(); ++i) {
      for (Index j = 0; j < head.head_dim(); ++j) {
        *k++ = head.key(i, j);
        *v++ = head.value(i, j);
      }
      weights[i] = head.weight(i);
    }
  }
  double difference(Index copy) override {
    token_.draw(start_.tokens_seen(0), 1);
    Cache& one = caches_.at(static_cast<std::size_t>(copy));
    one.attend(0, token_.q(), out());
    const double without_rows = bench::attention_error(one, token_.q(), out());
    AttendOutputs outputs;
    outputs.rows = make_rows(one);
    one.attend(0, token_.q(), out(), outputs);
    const double with_rows = bench::attention_error(one, token_.q(), out());
    // Attention per entry, added up over the group: each query head's is 1 in all.
    const float* row = outputs.rows.row(0, shape_.kv_heads - 1);
    const double sum = std::accumulate(row, row + one.length(0, shape_.kv_heads - 1), 0.0);
    const auto group = static_cast<double>(shape_.q_heads / shape_.kv_heads);
    return bench::worse(std::abs(sum / group - 1), bench::worse(without_rows, with_rows));
  }

  double attend(Index calls, bool with_rows, float* out_to, float* rows_to) override {
    token_.draw(start_.tokens_seen(0), 1);
    AttendOutputs outputs{.lse = lse_.data()};
    if (with_rows) outputs.rows = make_rows(caches_.at(0));
    const double seconds = bench::seconds_of([&] {
      for (Index i = 0; i < calls; ++i) next().attend(0, token_.q(), out(), outputs);
    });
    if (out_to != nullptr) std::copy(out_.begin(), out_.end(), out_to);
    if (with_rows && rows_to != nullptr) std::copy(rows_.begin(), rows_.end(), rows_to);
    return seconds;
  }

  double key_products(Index calls, float* products_to) override {
    const Index heads = shape_.kv_heads, dim = shape_.head_dim, most = longest(caches_[0]);
    const Index stride = bench::row_stride(most);
    std::vector<float> firsts(static_cast<std::size_t>(heads * dim));
    for (Index h = 0; h < heads; ++h) {
      for (Index j = 0; j < dim; ++j) {
        firsts[static_cast<std::size_t>(h * dim + j)] = caches_[0].head(0, h).key(0, j);
      }
    }
    rows_.resize(static_cast<std::size_t>(stride * heads));
    const Threads threads(shape_.threads);
    const double seconds = bench::seconds_of([&] {
      for (Index i = 0; i < calls; ++i) {
        const Cache& one = next();
        threads.run(heads, [&](Index h, int) {
          tersekv::key_products(one.head(0, h), 0, one.length(0, h), firsts.data() + h * dim, 1.0f,
                                rows_.data() + h * stride);
        });
      }
    });
    for (Index h = 0; h < heads && products_to != nullptr; ++h) {
      std::copy_n(rows_.data() + h * stride, most, products_to + h * most);
    }
    return seconds;
  }

  double prompt(Index queries, Index calls) override {
    if (prompt_out_.empty()) {
      prompt_.emplace_back(shape_.heads(), queries);
      prompt_[0].template round_queries_to<T>();
      prompt_[0].draw(start_.tokens_seen(0), queries);
      prompt_out_.resize(prompt_[0].q_size());
      for (Cache& each : caches_) bench::append_tokens(each, prompt_[0]);
    }
    const TokenView<float> into = prompt_out();
    return bench::seconds_of([&] {
      for (Index i = 0; i < calls; ++i) next().attend(0, prompt_[0].q(), into);
    });
  }
  double prompt_difference() override {
    const Index queries = prompt_.at(0).q().tokens;
    double error = 0;
    for (const Index t : {Index{0}, queries / 3, queries - 1}) {
      const double of_token =
          bench::attention_error(caches_.at(0), prompt_[0].q(), prompt_out(), t);
      error = bench::worse(of_token, error);
    }
    return error;
  }

  void steps(Index calls, double* seconds) override {
    for (Index i = 0; i < calls; ++i, seconds += 4) {
      Cache& one = next_with_token();
      const bench::VerbSeconds verbs = step_(one, token_);
      seconds[0] = verbs.append, seconds[1] = verbs.attend;
      seconds[2] = verbs.observe, seconds[3] = verbs.compress;
    }
  }
  void extends(Index calls, double* seconds) override {
    for (Index i = 0; i < calls; ++i, seconds += 2) {
      Cache& one = next_with_token();
      seconds[1] = policy_seconds.of(shape_.threads, [&] { seconds[0] = extend(one); });
    }
  }
  void pairs(Index calls, double* seconds) override {
    for (Index i = 0; i < calls; ++i) {
      Cache& one = next_with_token();
      seconds[2 * i] =
          bench::seconds_of([&] { one.attend(0, token_.q(), out(), {.lse = lse_.data()}); });
      seconds[2 * i + 1] = extend(one);
    }
  }
  void stream(Index calls, double* seconds) override {
    for (Index i = 0; i < calls; ++i) {
      const double one = extend(next_with_token());
      if (seconds != nullptr) seconds[i] = one;
    }
  }

 private:
  static constexpr Index kFillChunk = 1024;

  CacheSet(const SetShape& shape, const PolicyType& policy, const std::shared_ptr<PagePool>& pool)
      : CacheSet(shape, Cache(shape.config(), TimedPolicy(policy), *pool, Threads(shape.threads)),
                 pool) {}
  CacheSet(const SetShape& shape, Cache&& start, std::shared_ptr<PagePool> pool)
      : pool_(std::move(pool)),
        shape_(shape),
        start_(std::move(start)),
        token_(shape.heads()),
        step_(shape.heads(), Threads(shape.threads)),
        out_(token_.q_size()),
        lse_(static_cast<std::size_t>(shape.q_heads)) {
    token_.template round_queries_to<T>();
  }

  /// What an engine with so much to remember would take.
  static std::shared_ptr<PagePool> make_pool(const SetShape& shape) {
    const Index entry = 2 * shape.head_dim * Index{sizeof(T)};
    const Index bytes = shape.copies * shape.kv_heads * shape.tokens * entry;
    const bool large = bytes >= static_cast<Index>(kLargeFrom);
    return std::make_shared<PagePool>(std::pmr::get_default_resource(),
                                      large ? PageMemory::large : PageMemory::single);
  }
  /// All copies as they were at the start.
  void refresh() {
    caches_.clear();
    pool_->trim();  // new pages lie in memory one after the other
    for (Index i = 0; i < shape_.copies; ++i) caches_.push_back(start_.clone());
    next_ = 0;
  }
  const Cache& cache(Index copy) const { return caches_.at(static_cast<std::size_t>(copy)); }
  Index longest(const Cache& one) const {
    Index most = 0;
    for (Index h = 0; h < shape_.kv_heads; ++h) most = std::max(most, one.length(0, h));
    return most;
  }
  TokenView<float> prompt_out() {
    return nhd_view(prompt_out_.data(), prompt_.at(0).q().tokens, shape_.q_heads, shape_.head_dim);
  }
  /// Attention per entry of one token, a row for each KV head, in rows_.
  AttentionRows<float> make_rows(const Cache& one) {
    const Index stride = longest(one);
    rows_.resize(static_cast<std::size_t>(stride * shape_.kv_heads));
    return {rows_.data(), 1, 0, stride};
  }
  TokenView<float> out() { return nhd_view(out_.data(), 1, shape_.q_heads, shape_.head_dim); }
  Cache& next() {
    if (next_ == shape_.copies) next_ = 0;
    return caches_.at(static_cast<std::size_t>(next_++));  // or none are left of a failed refresh
  }
  /// The copy whose turn it is and a token that it has not seen. Who evicts little, or nothing,
  /// starts again when it has grown by a sixteenth and 64 entries.
  Cache& next_with_token() {
    if (next_ == shape_.copies) {
      const Index start = longest(start_);
      if (longest(caches_[0]) > start + std::max<Index>(64, start / 16)) refresh();
    }
    Cache& one = next();
    token_.draw(one.tokens_seen(0), 1, next_);
    return one;
  }
  double extend(Cache& one) {
    Chunk<float> chunk{.q = token_.q(), .k = token_.k(), .v = token_.v(), .out = out()};
    if constexpr (PolicyType::needs_token_scores) chunk.token_scores = token_.scores();
    return bench::seconds_of([&] { one.extend(chunk); });
  }

  std::shared_ptr<PagePool> pool_;
  SetShape shape_;
  Cache start_;
  std::vector<Cache> caches_;
  bench::Tokens token_;
  bench::DecodeStep<bench::Handed::rows, Cache, Threads> step_;
  std::vector<float> out_, lse_, rows_, prompt_out_;
  std::vector<bench::Tokens> prompt_;
  Index next_ = 0;
};

/// The set of the named element, one of `Elements`.
template <StoredElement... Elements, class PolicyType>
std::unique_ptr<AnySet> make_set(const SetShape& shape, const std::string& element,
                                 const PolicyType& policy) {
  std::unique_ptr<AnySet> made;
  std::string known;
  const auto try_one = [&]<class T>(T) {
    known += std::string(known.empty() ? "" : ", ") + Codec<T>::name;
    if (element == Codec<T>::name) made = std::make_unique<CacheSet<PolicyType, T>>(shape, policy);
  };
  (try_one(Elements{}), ...);
  if (made == nullptr) {
    throw std::invalid_argument("element: expected one of " + known + ", got " + element);
  }
  return made;
}

}  // namespace tersekv::peers
