// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <memory_resource>
#include <optional>
#include <stdexcept>
#include <string>
#include <tersekv/safetensors.hpp>
#include <tersekv/tersekv.hpp>
#include <utility>
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

/// Time that all threads together spent on heads, and what policies took of it.
struct HeadTimes {
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::rep> busy{0}, policy{0};
};

/// A policy that keeps the time: attention and policy take turns within a head's work, so only the
/// thread that does it can tell them apart. Costs two looks at the clock per verb.
template <class Policy>
class TimedPolicy : public Policy {
 public:
  TimedPolicy(const Policy& policy, HeadTimes& times) : Policy(policy), times_(&times) {}

  template <class Team, class Head>
  void observe(Team& team, const Head& head, const tersekv::Observation& row) const {
    timed([&] { Policy::observe(team, head, row); });
  }
  template <class Team, class Head>
  void compress(Team& team, const Head& head) const {
    timed([&] { Policy::compress(team, head); });
  }

 private:
  template <class F>
  void timed(F&& f) const {
    const auto start = HeadTimes::Clock::now();
    f();
    times_->policy += (HeadTimes::Clock::now() - start).count();
  }

  HeadTimes* times_;
};

/// The heads of a layer on the threads of a team.
class Executor {
 public:
  Executor(Team& team, HeadTimes& times) : team_(&team), times_(&times) {}

  int workers() const { return team_->threads(); }
  template <class F>
  void run(Index n, F&& f) const {
    team_->share(n, [&](Index task, int thread) {
      const auto start = HeadTimes::Clock::now();
      f(task, thread);
      times_->busy += (HeadTimes::Clock::now() - start).count();
    });
  }

 private:
  Team* team_;
  HeadTimes* times_;
};

/// In large pages, but for toys: where a page of every head comes to far less than one of those.
template <class Codec>
tersekv::PageMemory page_memory(const CacheShape& shape, Index page_size) {
  page_size = std::clamp<Index>(page_size, 1, tersekv::kMostPageSize);  // others are refused later
  const Index entry = 2 * shape.head_dim * Index{sizeof(Codec)};
  const Index bytes = shape.layers * shape.kv_heads * page_size * entry;
  return 4 * bytes >= static_cast<Index>(tersekv::kLargePage) ? tersekv::PageMemory::large
                                                              : tersekv::PageMemory::single;
}

template <class Policy, class Codec>
class PolicyCaches final : public LayerCaches {
 public:
  PolicyCaches(const CacheRequest& request, tersekv::CacheConfig config, const Policy& policy,
               std::optional<tersekv::SurrogateSet> surrogates = {})
      : pool_(std::pmr::get_default_resource(),
              page_memory<Codec>(request.shape, config.page_size)),
        scores_(std::move(surrogates), request.shape) {
    config = layer_config(config, request);
    layers_.reserve(static_cast<std::size_t>(request.shape.layers));
    for (config.layer = 0; config.layer < request.shape.layers; ++config.layer) {
      layers_.emplace_back(config, TimedPolicy<Policy>(policy, times_), pool_,
                           Executor(*request.team, times_));
    }
  }

  void extend(Index layer, const LayerRows& rows, Index compress_every) override {
    const auto start = HeadTimes::Clock::now();
    const tersekv::ScoreView scores = scores_.of(layer, rows);
    const auto scored = HeadTimes::Clock::now();
    const auto busy = times_.busy.load(), policy = times_.policy.load();
    extend(layer, rows, scores, compress_every);
    // Threads work side by side: of the time that passed, the policy's share of theirs.
    const double share =
        static_cast<double>(times_.policy.load() - policy) /
        static_cast<double>(std::max<HeadTimes::Clock::rep>(times_.busy - busy, 1));
    policy_seconds_ += seconds(scored - start) + share * seconds(HeadTimes::Clock::now() - scored);
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
    totals.bytes += pool_.idle_bytes();
    return totals;
  }

  double policy_seconds() const override { return policy_seconds_; }

 private:
  using Cache = tersekv::KVCache<TimedPolicy<Policy>, Codec, Codec, Executor>;

  static double seconds(HeadTimes::Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  void extend(Index layer, const LayerRows& rows, const tersekv::ScoreView& scores,
              Index compress_every) {
    Cache& cache = layers_[layer];
    const Index q_heads = cache.config().num_q_heads, kv_heads = cache.config().num_kv_heads;
    const Index head_dim = cache.config().head_dim;
    tersekv::Chunk<float> chunk{.q = tersekv::nhd_view(rows.q, rows.tokens, q_heads, head_dim),
                                .k = tersekv::nhd_view(rows.k, rows.tokens, kv_heads, head_dim),
                                .v = tersekv::nhd_view(rows.v, rows.tokens, kv_heads, head_dim),
                                .out = tersekv::nhd_view(rows.out, rows.tokens, q_heads, head_dim),
                                .token_scores = scores};
    static_assert(kNever == tersekv::kNever);
    cache.extend(chunk, {.compress_every = compress_every});
    // What a long prompt has left behind is of no more use; layers before the last still reuse it.
    const bool last = layer + 1 == static_cast<Index>(layers_.size());
    if (last && compress_every == 0 && rows.tokens > 1) pool_.trim();
  }

  HeadTimes times_;
  double policy_seconds_ = 0;
  tersekv::PagePool pool_;  // all layers'; must outlive them
  std::vector<Cache> layers_;
  TokenScores scores_;
};

/// Whether the table has the parameter, which is then set.
template <class Table, class Options>
bool apply_setting(const Table& table, Options& options, const Setting& setting) {
  const auto found =
      std::ranges::find(table, setting.name, [](const auto& parameter) { return parameter.name; });
  if (found == table.end()) return false;
  found->set(options, setting.value);
  return true;
}

/// The options and the cache settings that a request asks for, its parameters applied.
template <class Options>
std::pair<Options, tersekv::CacheConfig> apply_settings(
    const CacheRequest& request, const PolicyInfo& info,
    const std::vector<Parameter<Options>>& parameters) {
  std::pair<Options, tersekv::CacheConfig> result;
  for (const Setting& setting : request.settings) {
    if (apply_setting(parameters, result.first, setting)) continue;
    if (apply_setting(cache_parameters(), result.second, setting)) continue;
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
    const auto settings = apply_settings(request, entry.info, entry.parameters);
    const tersekv::CacheConfig& config =
        settings.second;  // clang 14 captures no structured binding
    caches =
        entry.create(settings.first,
                     [&](const auto& policy, auto... surrogates) -> std::unique_ptr<LayerCaches> {
                       using Policy = std::decay_t<decltype(policy)>;
                       return std::make_unique<Caches<Policy, Codec>>(request, config, policy,
                                                                      std::move(surrogates)...);
                     });
  });
  return caches;
}

/// Of a full cache, what a request for another one asks for: pages of the same size.
inline tersekv::CacheConfig full_cache_config(CacheRequest request) {
  tersekv::CacheConfig config;
  for (const Setting& setting : request.settings) {
    if (setting.name == "page_size") apply_setting(cache_parameters(), config, setting);
  }
  request.budget.reset();
  return layer_config(config, request);
}

/// full_cache_bytes(): asked of one layer's real cache rather than computed.
template <class Codec>
Index full_cache_bytes_of(const CacheRequest& request, Index tokens) {
  constexpr Index kPiece = 1024;
  const CacheShape& shape = request.shape;
  HeadTimes times;
  tersekv::PagePool pool;  // what it holds beside pages is all layers'
  tersekv::KVCache<tersekv::Full, Codec, Codec, Executor> cache(
      full_cache_config(request), {}, pool, Executor(*request.team, times));
  const std::vector<float> zeros(std::min(kPiece, tokens) * shape.q_heads * shape.head_dim);
  const auto view = [&](Index count, Index heads) {
    return tersekv::nhd_view(zeros.data(), count, heads, shape.head_dim);
  };
  for (Index left = tokens - 1; left > 0; left -= kPiece) {
    const auto piece = view(std::min(kPiece, left), shape.kv_heads);
    cache.append(0, piece, piece);
  }
  // The last token attends, so that the scratch memory of attention counts here as it does there:
  // that for single tokens, as these may all have come so.
  cache.trim();
  std::vector<float> out(shape.q_heads * shape.head_dim);
  cache.extend(view(1, shape.q_heads), view(1, shape.kv_heads), view(1, shape.kv_heads),
               tersekv::nhd_view(out.data(), 1, shape.q_heads, shape.head_dim));
  // The pages of all layers may lie in blocks, of which the last has something left over.
  tersekv::PagePool of_all(std::pmr::get_default_resource(),
                           page_memory<Codec>(shape, cache.config().page_size));
  of_all.set_page_bytes(pool.page_bytes());
  const Index pages = shape.layers * (pool.pages() - pool.idle_pages());
  const Index over = of_all.bytes_for(pages) - pages * pool.page_bytes();
  return shape.layers * cache.bytes() + pool.idle_bytes() + over;
}

using MakeCaches = std::unique_ptr<LayerCaches>(const CacheRequest&);
using CacheBytes = Index(const CacheRequest&, Index tokens);

// One source file each.
std::unique_ptr<LayerCaches> make_caches_f32(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_caches_f16(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_caches_bf16(const CacheRequest& request);
std::unique_ptr<LayerCaches> make_caches_int8(const CacheRequest& request);
Index full_cache_bytes_f32(const CacheRequest& request, Index tokens);
Index full_cache_bytes_f16(const CacheRequest& request, Index tokens);
Index full_cache_bytes_bf16(const CacheRequest& request, Index tokens);
Index full_cache_bytes_int8(const CacheRequest& request, Index tokens);
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

/// What does something for one element type.
template <class Function>
using OfKvType = std::pair<const char*, Function*>;

/// Calls the one for `kv_type` with `arguments`.
template <class Function, class... Arguments>
auto dispatch(const std::string& kv_type, std::initializer_list<OfKvType<Function>> each,
              const Arguments&... arguments) {
  std::string known;
  for (const auto& [name, function] : each) {
    if (kv_type == name) return function(arguments...);
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw std::invalid_argument("element type is '" + kv_type + "', expected one of " + known);
}

}  // namespace llama
