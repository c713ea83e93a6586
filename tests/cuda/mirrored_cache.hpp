// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/runtime_under_test.hpp"

namespace on_device {

/// A cache on the device with the CPU cache's interface: rows go there and back at every call, and
/// what is looked at is a copy. So tests written for the CPU's cache run on the device's.
template <class Policy, class Codec = float>
class MirroredCache {
 public:
  explicit MirroredCache(tersekv::CacheConfig config, Policy policy = {})
      : cache_(on_pages(std::move(config)), policy, options(policy, config)) {}

  template <class T>
  void extend(const tersekv::Chunk<T>& chunk, tersekv::ExtendOptions how = {}) {
    const Index tokens = chunk.k.tokens;
    const Array<T> q = copied(chunk.q), k = copied(chunk.k), v = copied(chunk.v);
    const Array<T> out(chunk.q.tokens * chunk.q.heads * chunk.q.head_dim);
    const Array<float> lse(tokens * chunk.q.heads);
    const Array<float> scores = copied(chunk.token_scores, tokens);
    tersekv::cuda::Batch<T> batch;
    batch.sequences = chunk.sequence;
    batch.q = there(q, chunk.q);
    batch.k = there(k, chunk.k);
    batch.v = there(v, chunk.v);
    batch.out = tersekv::nhd_view(out.data(), tokens, chunk.q.heads, chunk.q.head_dim);
    batch.lse = lse.data();
    if (chunk.token_scores.data != nullptr) batch.token_scores = {scores.data(), kv_heads()};
    cache_.extend(batch, how);
    back(out, chunk.out);
    if (chunk.lse != nullptr) std::ranges::copy(lse.host(), chunk.lse);
    copy_.reset();
  }
  template <class T>
  void extend(std::type_identity_t<tersekv::TokenView<const T>> q,
              std::type_identity_t<tersekv::TokenView<const T>> k,
              std::type_identity_t<tersekv::TokenView<const T>> v, tersekv::TokenView<T> out,
              tersekv::ExtendOptions how = {}) {
    extend(tersekv::Chunk<T>{.q = q, .k = k, .v = v, .out = out}, how);
  }

  template <class T>
  void append(Index sequence, tersekv::TokenView<T> k, tersekv::TokenView<T> v,
              tersekv::ScoreView token_scores = {}) {
    const auto keys = copied(k), values = copied(v);
    const Array<float> scores = copied(token_scores, k.tokens);
    cache_.append(sequence, there(keys, k), there(values, v),
                  token_scores.data == nullptr ? tersekv::ScoreView{}
                                               : tersekv::ScoreView{scores.data(), kv_heads()});
    copy_.reset();
  }
  template <class T>
  void attend(Index sequence, std::type_identity_t<tersekv::TokenView<const T>> q,
              tersekv::TokenView<T> out, tersekv::AttendOutputs outputs = {}) {
    const Array<T> queries = copied(q);
    const Array<T> there_out(q.tokens * q.heads * q.head_dim);
    const Array<float> lse(q.tokens * q.heads);
    const Index width = outputs.rows.head_stride;
    const Array<float> rows(outputs.rows.rows * kv_heads() * width);
    tersekv::AttendOutputs on_device{.lse = lse.data()};
    if (outputs.rows.data != nullptr) {
      on_device.rows = {rows.data(), outputs.rows.rows, kv_heads() * width, width};
    }
    cache_.attend(sequence, there(queries, q),
                  tersekv::nhd_view(there_out.data(), q.tokens, q.heads, q.head_dim), on_device);
    back(there_out, out);
    if (outputs.lse != nullptr) std::ranges::copy(lse.host(), outputs.lse);
    if (outputs.rows.data == nullptr) return;
    const auto computed = rows.host();
    for (Index r = 0; r < outputs.rows.rows; ++r) {
      for (Index h = 0; h < kv_heads(); ++h) {
        const Index seen = length(sequence, h) - (outputs.rows.rows - 1 - r);
        const auto from = computed.begin() + (r * kv_heads() + h) * width;
        std::copy(from, from + seen, outputs.rows.row(r, h));
      }
    }
  }
  void compress(Index sequence) {
    cache_.compress(sequence);
    copy_.reset();
  }

  Index length(Index sequence, Index h) { return look().length(sequence, h); }
  tersekv::Counts counts(Index sequence, Index h) { return look().counts(sequence, h); }
  std::vector<tersekv::Entry> entries(Index sequence, Index h) {
    return look().entries(sequence, h);
  }
  auto head(Index sequence, Index h) { return look().head(sequence, h); }
  const tersekv::CacheConfig& config() const { return cache_.config(); }
  KVCache<Policy, Codec>& on_device() { return cache_; }

 private:
  using HostCache = typename KVCache<Policy, Codec>::HostCache;

  static tersekv::CacheConfig on_pages(tersekv::CacheConfig config) {
    config.page_size = std::max<Index>(config.page_size, 64);
    return config;
  }
  static tersekv::cuda::DeviceOptions options(const Policy&, const tersekv::CacheConfig&) {
    return {.max_chunk = 640, .max_length = 640};
  }
  Index kv_heads() const { return cache_.config().num_kv_heads; }
  HostCache& look() {
    if (!copy_.has_value()) copy_.emplace(cache_.synchronize_to_host());
    return *copy_;
  }

  template <class T>
  static Array<std::remove_const_t<T>> copied(const tersekv::TokenView<T>& view) {
    std::vector<std::remove_const_t<T>> all;
    for (Index t = 0; t < view.tokens; ++t) {
      for (Index h = 0; h < view.heads; ++h) {
        for (Index j = 0; j < view.head_dim; ++j) all.push_back(view(t, h, j));
      }
    }
    return Array<std::remove_const_t<T>>(all);
  }
  Array<float> copied(const tersekv::ScoreView& scores, Index tokens) const {
    std::vector<float> all;
    for (Index t = 0; scores.data != nullptr && t < tokens; ++t) {
      for (Index h = 0; h < kv_heads(); ++h) all.push_back(scores(t, h));
    }
    return Array<float>(all);
  }
  template <class T, class Of>
  static tersekv::TokenView<const T> there(const Array<T>& array,
                                           const tersekv::TokenView<Of>& shape) {
    const T* data = array.data();
    return tersekv::nhd_view(data, shape.tokens, shape.heads, shape.head_dim);
  }
  template <class T>
  static void back(const Array<T>& from, const tersekv::TokenView<T>& to) {
    const auto all = from.host();
    auto next = all.begin();
    for (Index t = 0; t < to.tokens; ++t) {
      for (Index h = 0; h < to.heads; ++h) {
        for (Index j = 0; j < to.head_dim; ++j) to(t, h, j) = *next++;
      }
    }
  }

  KVCache<Policy, Codec> cache_;
  std::optional<HostCache> copy_;
};

}  // namespace on_device
