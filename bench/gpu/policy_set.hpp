// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "attention_set.hpp"
#include "bodies.hpp"
#include "tersekv/cuda/basic_kv_cache.hpp"

namespace tersekv_bench {

struct PolicyShape {
  Index copies = 1, sequences = 1, q_heads = 0, kv_heads = 0, head_dim = 0;
  Index budget = 0;  ///< for policies that have one
  Index room = 0;    ///< entries of a head, at most
};

/// What the C functions know of a set.
template <class Runtime>
class AnyPolicySet {
 public:
  using Stream = typename Runtime::Stream;
  virtual ~AnyPolicySet() = default;
  virtual void fill(Index tokens, std::uint64_t seed, Stream stream) = 0;
  virtual void refresh(std::uint64_t seed, Stream stream) = 0;
  virtual void attend(Index copy, Stream stream) = 0;
  virtual void steps(Index first, Index count, Stream stream) = 0;
  virtual void steps_apart(Index first, Index count, Stream stream, Stream policies) = 0;
  virtual void synchronize(Stream stream) = 0;
  virtual Index length(Index copy, Index sequence, Index kv_head) const = 0;
  virtual Index bytes(int what) const = 0;
};

/// Copies of one cache, which take two workspaces in turns as an engine's layers do, and the tokens
/// of a step.
template <class Runtime, class PolicyType, class Codec>
class PolicySet final : public AnyPolicySet<Runtime> {
 public:
  using Stream = typename Runtime::Stream;
  using Cache = tersekv::cuda::BasicKVCache<PolicyType, Codec, Codec, Runtime, Dims>;

  PolicySet(const PolicyShape& shape, Stream stream) : shape_(shape) {
    tersekv::CacheConfig config;
    config.num_sequences = shape.sequences;
    config.num_q_heads = shape.q_heads;
    config.num_kv_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    config.page_size = kPageSize;
    if (PolicyType::needs_budget) config.budget = shape.budget;
    tersekv::cuda::DeviceOptions options;
    options.max_chunk = chunk();
    options.max_length = shape.room;
    options.tuning.observed_rows = 1;  // steps, not prompts
    const Index pages_of_head = (shape.room + kPageSize - 1) / kPageSize;
    caches_.reserve(std::size_t(shape.copies));
    for (Index c = 0; c < shape.copies; ++c) {
      pools_.push_back(std::make_unique<Pool>(shape.sequences * shape.kv_heads * pages_of_head));
      caches_.emplace_back(config, PolicyType{}, options, *pools_.back(),
                           workspaces_[std::size_t(c) % workspaces_.size()], stream);
    }
    const Index tokens = shape.sequences * chunk();
    k_ = Elements(tokens * shape.kv_heads * shape.head_dim);
    v_ = Elements(k_.count());
    scores_ = tersekv::cuda::Buffer<Runtime, float>(tokens * shape.kv_heads);
    q_ = Elements(shape.sequences * shape.q_heads * shape.head_dim);
    out_ = Elements(q_.count());
    refresh(1, stream);
    Runtime::synchronize(stream);
  }

  /// With scores that a policy by score keeps (KVzap's threshold is -4).
  void fill(Index tokens, std::uint64_t seed, Stream stream) override {
    for (Index done = 0; done < tokens; done += chunk()) {
      const Index count = std::min(chunk(), tokens - done);
      for (Cache& cache : caches_) {
        randomize(k_, ++seed * 3, stream);
        randomize(v_, seed * 3 + 1, stream);
        randomize_scores(seed * 3 + 2, 1.0f, 0.0f, stream);
        cache.append(all(), view(k_, count, shape_.kv_heads), view(v_, count, shape_.kv_heads),
                     token_scores(), stream);
      }
    }
    refresh(seed, stream);
  }
  /// Half of the next tokens' scores are below that threshold.
  void refresh(std::uint64_t seed, Stream stream) override {
    randomize(q_, seed * 5, stream);
    randomize(k_, seed * 5 + 1, stream);
    randomize(v_, seed * 5 + 2, stream);
    randomize_scores(seed * 5 + 3, 8.0f, -8.0f, stream);
  }
  void attend(Index copy, Stream stream) override {
    caches_.at(std::size_t(copy))
        .attend(all(), view(q_, 1, shape_.q_heads), view(out_, 1, shape_.q_heads), {}, stream);
  }
  void steps(Index first, Index count, Stream stream) override {
    tersekv::cuda::Batch<Codec> batch(all(), view(q_, 1, shape_.q_heads),
                                      view(k_, 1, shape_.kv_heads), view(v_, 1, shape_.kv_heads),
                                      view(out_, 1, shape_.q_heads));
    batch.token_scores = token_scores();
    for (Index i = 0; i < count; ++i) {
      caches_.at(std::size_t((first + i) % shape_.copies)).extend(batch, {}, stream);
    }
  }
  void steps_apart(Index first, Index count, Stream stream, Stream policies) override {
    for (auto& workspace : workspaces_) workspace.run_policies_on(policies);
    steps(first, count, stream);
    for (auto& workspace : workspaces_) {
      workspace.wait(stream);
      workspace.run_policies_on(std::nullopt);
    }
  }
  void synchronize(Stream stream) override {
    for (Cache& cache : caches_) cache.synchronize(stream);
  }
  Index length(Index copy, Index sequence, Index kv_head) const override {
    return caches_.at(std::size_t(copy)).length(sequence, kv_head);
  }
  Index bytes(int what) const override {
    if (what == 1) return workspaces_.front().bytes();
    // The pool is this cache's alone, so its idle pages count as well.
    const auto usage = caches_.front().memory();
    return pools_.front()->bytes() + usage.bookkeeping;
  }

 private:
  using Pool = tersekv::cuda::BasicPagePool<Runtime>;
  using Elements = tersekv::cuda::Buffer<Runtime, Codec>;

  Index chunk() const { return std::min<Index>(512, shape_.room); }
  tersekv::cuda::Sequences all() const { return {0, shape_.sequences}; }
  tersekv::TokenView<Codec> view(const Elements& buffer, Index tokens, Index heads) const {
    return tersekv::nhd_view(buffer.data(), shape_.sequences * tokens, heads, shape_.head_dim);
  }
  tersekv::ScoreView token_scores() const { return {scores_.data(), shape_.kv_heads, 1}; }
  static int blocks(Index count) {
    return static_cast<int>(std::min<Index>(count / 1024 + 1, 4096));
  }
  static void randomize(const Elements& buffer, std::uint64_t seed, Stream stream) {
    typename RandomBody<Codec>::Args args;
    args.to = buffer.data();
    args.count = buffer.count();
    args.seed = seed;
    args.blocks = blocks(args.count);
    Runtime::template launch<RandomBody<Codec>>(tersekv::cuda::Grid{args.blocks}, 1, nullptr,
                                                stream, args);
  }
  void randomize_scores(std::uint64_t seed, float scale, float offset, Stream stream) const {
    typename RandomBody<float>::Args args;
    args.to = scores_.data();
    args.count = scores_.count();
    args.seed = seed;
    args.uniform = true;
    args.scale = scale;
    args.offset = offset;
    args.blocks = blocks(args.count);
    Runtime::template launch<RandomBody<float>>(tersekv::cuda::Grid{args.blocks}, 1, nullptr,
                                                stream, args);
  }

  PolicyShape shape_;
  std::vector<std::unique_ptr<Pool>> pools_;  // these two outlive the caches
  std::array<tersekv::cuda::BasicWorkspace<Runtime>, 2> workspaces_;
  std::vector<Cache> caches_;
  Elements q_, k_, v_, out_;
  tersekv::cuda::Buffer<Runtime, float> scores_;
};

/// Of one policy; defined where that policy is compiled, a file for each, as each takes its time.
template <class Runtime, class PolicyType>
std::unique_ptr<AnyPolicySet<Runtime>> make_policy_set(const PolicyShape& shape,
                                                       const std::string& dtype,
                                                       typename Runtime::Stream stream);

}  // namespace tersekv_bench
