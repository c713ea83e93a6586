// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tersekv/safetensors.hpp>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "caches.hpp"
#include "policy_table.hpp"

// LayerCaches on the library: one tersekv::KVCache per layer, and what those on a device
// (device_caches.hpp) share with it. Instantiated once per element type, in a source file of its
// own, to keep compile times bearable.
namespace llama {

/// `config` with what the model and the request say of every layer.
inline tersekv::CacheConfig layer_config(tersekv::CacheConfig config, const CacheRequest& request) {
  config.num_q_heads = request.shape.q_heads;
  config.num_kv_heads = request.shape.kv_heads;
  config.head_dim = request.shape.head_dim;
  config.budget = tersekv::Budget(request.budget.value_or(tersekv::kUnlimited));
  return config;
}

/// What surrogates predict of new tokens, for policies that want it.
class TokenScores {
 public:
  TokenScores(std::optional<tersekv::SurrogateSet> surrogates, const CacheShape& shape)
      : surrogates_(std::move(surrogates)), kv_heads_(shape.kv_heads) {
    if (surrogates_) check(*surrogates_, shape);
  }
  /// [tokens, kv_heads], or empty where there are no surrogates. Valid until the next call.
  tersekv::ScoreView of(Index layer, const LayerRows& rows) {
    if (!surrogates_) return {};
    const tersekv::Surrogate& surrogate = surrogates_->layer(layer);
    scores_.resize(static_cast<std::size_t>(rows.tokens * kv_heads_));
    surrogate.predict(rows.hidden, rows.tokens, surrogate.model_dim(), scores_.data());
    return {scores_.data(), kv_heads_};
  }

 private:
  static void check(const tersekv::SurrogateSet& set, const CacheShape& shape) {
    bool fits = set.size() == shape.layers;
    for (Index i = 0; fits && i < shape.layers; ++i) {
      fits = set.layer(i).model_dim() == shape.embedding &&
             set.layer(i).num_kv_heads() == shape.kv_heads;
    }
    if (!fits) {
      throw std::invalid_argument("the surrogates do not fit the model: expected " +
                                  std::to_string(shape.layers) + " layers from " +
                                  std::to_string(shape.embedding) + " dimensions to " +
                                  std::to_string(shape.kv_heads) + " heads");
    }
  }

  std::optional<tersekv::SurrogateSet> surrogates_;
  Index kv_heads_;
  std::vector<float> scores_;
};

/// The heads of a layer on several threads where the call is long enough to be worth waking them.
class Executor {
 public:
  Executor(int threads, const bool* worthwhile) : threads_(threads), worthwhile_(worthwhile) {}

  int workers() const { return threads_; }
  template <class F>
  void run(Index n, F&& f) const {
#if defined(_OPENMP)
    if (threads_ > 1 && *worthwhile_) return tersekv::OpenMPExecutor(threads_).run(n, f);
#endif
    tersekv::SerialExecutor().run(n, f);
  }

 private:
  int threads_;
  const bool* worthwhile_;
};

template <class Policy, class Codec>
class PolicyCaches final : public LayerCaches {
 public:
  PolicyCaches(const CacheRequest& request, tersekv::CacheConfig config, const Policy& policy,
               std::optional<tersekv::SurrogateSet> surrogates = {})
      : scores_(std::move(surrogates), request.shape) {
    config = layer_config(config, request);
    layers_.reserve(static_cast<std::size_t>(request.shape.layers));
    for (config.layer = 0; config.layer < request.shape.layers; ++config.layer) {
      layers_.emplace_back(config, policy, pool_, Executor(request.threads, &worthwhile_));
    }
  }

  void extend(Index layer, const LayerRows& rows, Index compress_every) override {
    tersekv::KVCache<Policy, Codec, Codec, Executor>& cache = layers_[layer];
    const Index q_heads = cache.config().num_q_heads, kv_heads = cache.config().num_kv_heads;
    const Index head_dim = cache.config().head_dim;
    tersekv::Chunk<float> chunk{.q = tersekv::nhd_view(rows.q, rows.tokens, q_heads, head_dim),
                                .k = tersekv::nhd_view(rows.k, rows.tokens, kv_heads, head_dim),
                                .v = tersekv::nhd_view(rows.v, rows.tokens, kv_heads, head_dim),
                                .out = tersekv::nhd_view(rows.out, rows.tokens, q_heads, head_dim),
                                .token_scores = scores_.of(layer, rows)};
    const Index entries = cache.length(0, 0) + rows.tokens;
    worthwhile_ = rows.tokens * entries * kv_heads * head_dim >= kWorthwhile;
    static_assert(kNever == tersekv::kNever);
    cache.extend(chunk, {.compress_every = compress_every});
    // What a long prompt has left behind is of no more use; layers before the last still reuse it.
    const bool last = layer + 1 == static_cast<Index>(layers_.size());
    if (last && compress_every == 0 && rows.tokens > 1) pool_.trim();
  }

  CacheTotals totals() const override {
    CacheTotals totals;
    for (const auto& cache : layers_) {
      for (Index head = 0; head < cache.config().num_kv_heads; ++head) {
        totals.kept_entries += cache.length(0, head);
        totals.seen_entries += cache.tokens_seen(0);
      }
      totals.evictions += cache.total_counts().evictions;
      totals.merges += cache.total_counts().merges;
      totals.bytes += cache.bytes();
    }
    totals.bytes += pool_.idle_pages() * pool_.page_bytes() + pool_.bookkeeping_bytes();
    return totals;
  }

 private:
  // Elements of keys that a call multiplies, at least, to be shared among threads: some 0.1 ms.
  static constexpr Index kWorthwhile = Index{1} << 20;

  bool worthwhile_ = false;
  tersekv::PagePool pool_;  // all layers'; must outlive them
  std::vector<tersekv::KVCache<Policy, Codec, Codec, Executor>> layers_;
  TokenScores scores_;
};

/// The options and the cache settings that a request asks for, its parameters applied.
template <class Options>
std::pair<Options, tersekv::CacheConfig> apply_settings(
    const CacheRequest& request, const PolicyInfo& info,
    const std::vector<Parameter<Options>>& parameters) {
  std::pair<Options, tersekv::CacheConfig> result;
  const auto apply = [](const auto& table, auto& options, const Setting& setting) {
    const auto found = std::ranges::find(table, setting.name,
                                         [](const auto& parameter) { return parameter.name; });
    if (found == table.end()) return false;
    found->set(options, setting.value);
    return true;
  };
  for (const Setting& setting : request.settings) {
    if (apply(parameters, result.first, setting)) continue;
    if (apply(cache_parameters(), result.second, setting)) continue;
    std::string known;
    for (const auto& parameter : parameters) known += parameter.name + ", ";
    for (const auto& parameter : cache_parameters()) known += parameter.name + ", ";
    throw std::invalid_argument(info.name + " has no parameter '" + setting.name +
                                "'; there are: " + known.substr(0, known.size() - 2));
  }
  return result;
}

/// `Caches<Policy, Codec>` for the policy that the request names.
template <template <class, class> class Caches, class Codec>
std::unique_ptr<LayerCaches> make_caches_of(const CacheRequest& request) {
  std::unique_ptr<LayerCaches> caches;
  for_each_policy([&]<class Options, class Create>(const PolicyEntry<Options, Create>& entry) {
    if (entry.info.name != request.policy) return;
    const auto [options, config] = apply_settings(request, entry.info, entry.parameters);
    caches = entry.create(
        options, [&](const auto& policy, auto... surrogates) -> std::unique_ptr<LayerCaches> {
          using Policy = std::decay_t<decltype(policy)>;
          return std::make_unique<Caches<Policy, Codec>>(request, config, policy,
                                                         std::move(surrogates)...);
        });
  });
  return caches;
}

/// full_cache_bytes(): asked of one layer's real cache rather than computed.
template <class Codec>
Index full_cache_bytes_of(const CacheRequest& request, Index tokens) {
  constexpr Index kPiece = 1024;
  constexpr bool parallel = false;
  const CacheShape& shape = request.shape;
  tersekv::KVCache<tersekv::Full, Codec, Codec, Executor> cache(
      {.num_q_heads = shape.q_heads, .num_kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
      {}, Executor(request.threads, &parallel));
  const std::vector<float> zeros(std::min(kPiece, tokens) * shape.q_heads * shape.head_dim);
  const auto view = [&](Index count, Index heads) {
    return tersekv::nhd_view(zeros.data(), count, heads, shape.head_dim);
  };
  for (Index left = tokens - 1; left > 0; left -= kPiece) {
    const auto piece = view(std::min(kPiece, left), shape.kv_heads);
    cache.append(0, piece, piece);
  }
  // The last token attends, so that the scratch memory of attention counts here as it does there.
  std::vector<float> out(shape.q_heads * shape.head_dim);
  cache.extend(view(1, shape.q_heads), view(1, shape.kv_heads), view(1, shape.kv_heads),
               tersekv::nhd_view(out.data(), 1, shape.q_heads, shape.head_dim));
  return shape.layers * cache.bytes();
}

// One source file each.
std::unique_ptr<LayerCaches> make_caches_f32(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_caches_f16(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_caches_bf16(const CacheRequest& request);
Index full_cache_bytes_f32(const CacheRequest& request, Index tokens);
Index full_cache_bytes_f16(const CacheRequest& request, Index tokens);
Index full_cache_bytes_bf16(const CacheRequest& request, Index tokens);
// The same on a CUDA device.
std::unique_ptr<LayerCaches> make_cuda_caches_f32(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_cuda_caches_f16(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_cuda_caches_bf16(const CacheRequest& request);
Index full_cuda_cache_bytes_f32(const CacheRequest& request, Index tokens);
Index full_cuda_cache_bytes_f16(const CacheRequest& request, Index tokens);
Index full_cuda_cache_bytes_bf16(const CacheRequest& request, Index tokens);
// In caches_cuda.cu, or where the program is built without CUDA in caches_no_cuda.cpp.
std::unique_ptr<LayerCaches> make_cuda_caches(const CacheRequest& request);
Index full_cuda_cache_bytes(const CacheRequest& request, Index tokens);

/// Calls one of three functions with `arguments`, by the name of an element type.
template <class Function, class... Arguments>
auto dispatch(const std::string& kv_type, Function* f32, Function* f16, Function* bf16,
              const Arguments&... arguments) {
  if (kv_type == "f32") return f32(arguments...);
  if (kv_type == "f16") return f16(arguments...);
  if (kv_type == "bf16") return bf16(arguments...);
  throw std::invalid_argument("element type is '" + kv_type + "', expected f32, f16 or bf16");
}

}  // namespace llama
