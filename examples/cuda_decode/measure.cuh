// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <tersekv/cuda/kv_cache.cuh>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "decoder.cuh"
#include "graph.cuh"
#include "options.hpp"

namespace decode {

/// A line of the table.
struct Result {
  Index entries = 0;                      ///< of a head, on average, when the steps are done
  Index cache_bytes = 0, work_bytes = 0;  ///< of all sequences and layers
  double step_ms = 0, apart_ms = 0, cache_ms = 0;
  double fits = 0;  ///< sequences, computed
};

/// The caches of all layers on one pool and two workspaces, filled and stepped.
template <class Policy>
class Caches {
 public:
  using Cache = tersekv::cuda::KVCache<Policy, BFloat16, BFloat16, tersekv::cuda::HeadDims<128>>;

  /// `steps`: that will be taken, those of captures included.
  Caches(const std::string& name, const Policy& policy, const Options& options, Index steps,
         const Decoder& decoder)
      : name_(name),
        context_(options.context),
        decoder_(decoder),
        kept_(most_kept(options)),
        room_(kept_ + std::max(kChunk, steps)),
        pool_(most_pages(steps)),
        k_(batch() * kChunk * kv_width()),
        v_(k_.count()),
        q_(batch() * kObserved * decoder.shape().q_width()),
        scores_(batch() * kChunk * decoder.shape().kv_heads) {
    tersekv::CacheConfig config;
    config.num_sequences = batch();
    config.num_q_heads = decoder.shape().q_heads;
    config.num_kv_heads = decoder.shape().kv_heads;
    config.head_dim = decoder.shape().head_dim;
    config.budget = options.budget();
    config.page_size = kPage;
    tersekv::cuda::DeviceOptions device;
    device.max_length = room_;
    layers_.reserve(static_cast<std::size_t>(decoder.layers()));
    for (config.layer = 0; config.layer < decoder.layers(); ++config.layer) {
      layers_.emplace_back(config, policy, device, pool_, workspace_of(config.layer),
                           decoder.stream());
    }
  }
  /// From now on policies are at work while the decoder goes on with the layer.
  void run_policies_on(cudaStream_t stream) {
    for (auto& workspace : workspaces_) workspace.run_policies_on(stream);
  }
  /// Before the end of a capture: until policies are done with the step.
  void wait_for_policies() {
    for (auto& workspace : workspaces_) workspace.wait(decoder_.stream());
  }

  /// As if a prompt had passed: random keys and values in chunks, the last queries of each shown to
  /// the policy, a compression after each.
  void fill() {
    const bool watched = isatty(STDERR_FILENO) != 0;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      if (watched) {
        std::fprintf(stderr, "\r%-14s filling the cache of layer %zu of %zu ", name_.c_str(),
                     layer + 1, layers_.size());
      }
      for (Index start = 0; start < context_; start += kChunk) {
        fill(layers_[layer], std::min(kChunk, context_ - start));
      }
    }
    if (watched) std::fprintf(stderr, "\r%60s\r", "");
  }

  /// The part of a step that is a layer's cache's. Asynchronous, may be captured.
  void attend(Index layer, const StepRows& rows) {
    tersekv::cuda::Batch<BFloat16> step({0, batch()}, rows.q, rows.k, rows.v, rows.out);
    if constexpr (Policy::needs_token_scores) step.token_scores = random_scores(batch());
    layers_[static_cast<std::size_t>(layer)].extend(step, {}, decoder_.stream());
  }

  /// Waits, and says what is held.
  void report(Result& result) {
    Index entries = 0, bookkeeping = 0;
    for (Cache& cache : layers_) {
      cache.synchronize(decoder_.stream());
      for (Index s = 0; s < batch(); ++s) {
        for (Index h = 0; h < decoder_.shape().kv_heads; ++h) entries += cache.length(s, h);
      }
      bookkeeping += cache.memory().bookkeeping;
    }
    result.entries = entries / (batch() * decoder_.shape().kv_heads * decoder_.layers());
    result.cache_bytes = pool_.bytes() + bookkeeping;
    for (const auto& workspace : workspaces_) result.work_bytes += workspace.bytes();
  }
  void synchronize() {
    for (Cache& cache : layers_) cache.synchronize(decoder_.stream());
  }

 private:
  static constexpr Index kPage = 64;
  static constexpr Index kChunk = 512;    // tokens of a sequence appended at once
  static constexpr Index kObserved = 32;  // queries of a chunk that the policy sees
  static constexpr bool kKeepsAll = std::is_same_v<Policy, tersekv::Full>;
  static constexpr bool kGrows = !Policy::needs_budget || std::is_same_v<Policy, tersekv::SnapKV>;

  /// Layers take them in turns, as a policy may be at work in one while the next layer attends.
  tersekv::cuda::Workspace& workspace_of(Index layer) {
    return workspaces_[static_cast<std::size_t>(layer) % workspaces_.size()];
  }

  Index batch() const { return decoder_.batch(); }
  Index kv_width() const { return decoder_.shape().kv_width(); }

  /// Entries of a head after a chunk, at most.
  static Index most_kept(const Options& options) {
    if (kKeepsAll) return options.context;
    const auto budget = static_cast<double>(options.budget());
    // Where chance decides how many stay, six standard deviations more.
    return options.budget() +
           (Policy::needs_budget ? 0 : static_cast<Index>(std::ceil(6 * std::sqrt(budget))));
  }
  /// Of all layers. Only the layer at work holds more than what stays and a step's token.
  Index most_pages(Index steps) const {
    const auto pages = [](Index entries) { return (entries + kPage - 1) / kPage; };
    const Index stay = pages(kept_ + (kGrows ? steps : 1));
    return batch() * decoder_.shape().kv_heads * (decoder_.layers() * stay + pages(kChunk) + 1);
  }

  void fill(Cache& cache, Index tokens) {
    const ModelShape& s = decoder_.shape();
    const cudaStream_t stream = decoder_.stream();
    const tersekv::cuda::Sequences all(0, batch());
    decoder_.count();
    const auto random_rows = [&](const Buffer<BFloat16>& rows, Index count, Index heads,
                                 std::uint32_t seed) {
      decode::fill(rows.data(), batch() * count * heads * s.head_dim, 1, decoder_.random(seed),
                   stream);
      return tersekv::nhd_view<const BFloat16>(rows.data(), batch() * count, heads, s.head_dim);
    };
    tersekv::ScoreView scores;
    if constexpr (Policy::needs_token_scores) scores = random_scores(batch() * tokens);
    const auto k = random_rows(k_, tokens, s.kv_heads, 1),
               v = random_rows(v_, tokens, s.kv_heads, 2);
    cache.append(all, k, v, scores, stream);
    if constexpr (Policy::observes != tersekv::Observes::nothing) {
      cache.observe(all, random_rows(q_, std::min(kObserved, tokens), s.q_heads, 3), stream);
    }
    cache.compress(all, stream);
    cache.synchronize(stream);  // where the policy has no budget, the host must ask for the lengths
  }

  tersekv::ScoreView random_scores(Index tokens) const {
    const Index heads = decoder_.shape().kv_heads;
    fill_scores(scores_.data(), tokens * heads, decoder_.random(4), decoder_.stream());
    return {scores_.data(), heads};
  }

  std::string name_;
  Index context_;
  const Decoder& decoder_;
  Index kept_, room_;
  // The layers give their pages back, so what they borrow comes first.
  tersekv::cuda::PagePool pool_;
  std::array<tersekv::cuda::Workspace, 2> workspaces_;
  std::vector<Cache> layers_;
  Buffer<BFloat16> k_, v_, q_;
  Buffer<float> scores_;
};

template <class Policy>
Result measure(const std::string& name, const Policy& policy, const Options& options,
               Decoder& decoder) {
  constexpr int kWarmUp = 3;
  Result result;
  std::size_t free_bytes = 0, all_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &all_bytes), "free memory");

  // All graphs are replayed; one step is taken before, one is counted in each capture.
  const Index steps = 3 * (options.steps + kWarmUp + 1) + 1;
  const SideStream policies;
  Caches<Policy> caches(name, policy, options, steps, decoder);
  caches.fill();
  const auto attend = [&](Index layer, const StepRows& rows) { caches.attend(layer, rows); };
  decoder.step(attend);  // libraries may prepare themselves now, which a capture would not allow
  caches.synchronize();
  {
    const Graph step(decoder.stream(), [&] { decoder.step(attend); });
    result.step_ms = step.replay(options.steps, kWarmUp);
  }
  {
    const Graph part(decoder.stream(), [&] { decoder.attend_only(attend); });
    result.cache_ms = part.replay(options.steps, kWarmUp);
  }
  {
    caches.run_policies_on(policies.stream);
    const Graph step(decoder.stream(), [&] {
      decoder.step(attend);
      caches.wait_for_policies();
    });
    result.apart_ms = step.replay(options.steps, kWarmUp);
  }
  caches.report(result);
  const double bytes_per_sequence = static_cast<double>(result.cache_bytes + result.work_bytes) /
                                    static_cast<double>(options.batch);
  result.fits = std::floor(static_cast<double>(free_bytes) / bytes_per_sequence);
  return result;
}

}  // namespace decode
