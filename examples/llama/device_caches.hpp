// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <tersekv/cuda/basic_kv_cache.hpp>
#include <utility>
#include <vector>

#include "layer_caches.hpp"

// LayerCaches on a device, whose Runtime and head_dims the source file names.
namespace llama {

/// One tersekv::cuda::BasicKVCache per layer, on one pool and one workspace. The rest of the engine
/// stays on the CPU, so the rows of every call travel to the device and back, and every call waits.
/// Queries travel in float, as the CPU's caches get them: results are the CPU's but for rounding.
template <class Runtime, class Dims, class Policy, class Codec>
class DeviceCaches final : public LayerCaches {
 public:
  DeviceCaches(const CacheRequest& request, tersekv::CacheConfig config, const Policy& policy,
               std::optional<tersekv::SurrogateSet> surrogates = {})
      : pool_(most_pages(request, config.page_size)),
        scores_(std::move(surrogates), request.shape) {
    config = layer_config(config, request);
    tersekv::cuda::DeviceOptions options;
    options.max_length = request.tokens;  // as long as that: prompts come whole
    layers_.reserve(static_cast<std::size_t>(request.shape.layers));
    for (config.layer = 0; config.layer < request.shape.layers; ++config.layer) {
      layers_.emplace_back(config, policy, options, pool_, workspace_);
    }
  }

  void extend(Index layer, const LayerRows& rows, Index compress_every) override {
    Cache& cache = layers_[static_cast<std::size_t>(layer)];
    const tersekv::CacheConfig& config = cache.config();
    const Index outputs = rows.tokens * config.num_q_heads * config.head_dim;
    tersekv::Chunk<float> chunk;
    chunk.q = sent(rows.q, rows.tokens, config.num_q_heads, config, q_);
    chunk.k = sent(rows.k, rows.tokens, config.num_kv_heads, config, k_);
    chunk.v = sent(rows.v, rows.tokens, config.num_kv_heads, config, v_);
    chunk.out =
        tersekv::nhd_view(room(out_, outputs), rows.tokens, config.num_q_heads, config.head_dim);
    if (const tersekv::ScoreView scores = scores_.of(layer, rows); scores.data != nullptr) {
      chunk.token_scores = {send(scores.data, rows.tokens * config.num_kv_heads, score_rows_),
                            config.num_kv_heads};
    }
    static_assert(kNever == tersekv::kNever);
    cache.extend(chunk, {.compress_every = compress_every});
    Runtime::copy_out(rows.out, out_.data(), bytes(outputs), {});
    cache.synchronize();
  }

  CacheTotals totals() const override {
    CacheTotals totals;
    for (const Cache& cache : layers_) {
      for (Index head = 0; head < cache.config().num_kv_heads; ++head) {
        const tersekv::Counts counts = cache.counts(0, head);
        totals.kept_entries += cache.length(0, head);
        totals.seen_entries += cache.tokens_seen(0);
        totals.evictions += counts.evictions;
        totals.merges += counts.merges;
      }
      const tersekv::MemoryUsage usage = cache.memory();
      totals.bytes += usage.total() - usage.workspace;  // that of all layers
    }
    totals.bytes += workspace_.bytes() + pool_.bytes() - pool_.pages() * pool_.page_bytes();
    return totals;
  }

 private:
  using Cache = tersekv::cuda::BasicKVCache<Policy, Codec, Codec, Runtime, Dims>;
  using Buffer = tersekv::cuda::Buffer<Runtime, float>;

  /// All that a cache which keeps everything would need. A page_size that is none is the cache's to
  /// refuse.
  static Index most_pages(const CacheRequest& request, Index page_size) {
    const Index page = std::max<Index>(page_size, 1);
    return request.shape.layers * request.shape.kv_heads * ((request.tokens + page - 1) / page);
  }

  static std::size_t bytes(Index count) { return static_cast<std::size_t>(count) * sizeof(float); }
  static float* room(Buffer& buffer, Index count) {
    if (buffer.count() < count) buffer = Buffer(count);
    return buffer.data();
  }
  static const float* send(const float* from, Index count, Buffer& to) {
    Runtime::copy_in(room(to, count), from, bytes(count), {});
    return to.data();
  }
  static tersekv::TokenView<const float> sent(const float* rows, Index tokens, Index heads,
                                              const tersekv::CacheConfig& config, Buffer& to) {
    return tersekv::nhd_view(send(rows, tokens * heads * config.head_dim, to), tokens, heads,
                             config.head_dim);
  }

  // The layers give their pages back, so what they borrow comes first.
  tersekv::cuda::BasicPagePool<Runtime> pool_;
  tersekv::cuda::BasicWorkspace<Runtime> workspace_;
  std::vector<Cache> layers_;
  TokenScores scores_;
  Buffer q_, k_, v_, out_, score_rows_;  // of the call at hand, on the device
};

/// full_cache_bytes(), asked of real caches that are filled with zeros.
template <class Caches>
Index full_device_cache_bytes_of(CacheRequest request, Index tokens) {
  constexpr Index kPiece = 1024;
  const CacheShape& shape = request.shape;
  request.budget.reset();
  request.tokens = tokens;
  Caches caches(request, full_cache_config(request), tersekv::Full{});
  const Index row = shape.q_heads * shape.head_dim;
  const std::vector<float> zeros(static_cast<std::size_t>(std::min(kPiece, tokens) * row));
  std::vector<float> out(zeros.size());
  for (Index layer = 0; layer < shape.layers; ++layer) {
    for (Index left = tokens; left > 0; left -= kPiece) {
      const float* zero = zeros.data();
      caches.extend(layer, {std::min(kPiece, left), zero, zero, zero, out.data(), nullptr}, kNever);
    }
  }
  return caches.totals().bytes;
}

}  // namespace llama
