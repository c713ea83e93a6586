// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda/device_tokens.hpp"
#include "support/compare.hpp"

namespace on_device {

/// The shape of most tests of whole caches: small, as the host is slow.
inline constexpr Index kDim = 16, kHeads = 2, kGroup = 2;
template <class Policy, class Codec = float>
using SmallCache = KVCache<Policy, Codec, Codec, tersekv::cuda::HeadDims<kDim>>;

inline tersekv::CacheConfig small_config(Index sequences, Index budget) {
  return {.num_sequences = sequences,
          .num_q_heads = kHeads * kGroup,
          .num_kv_heads = kHeads,
          .head_dim = kDim,
          .budget = budget};
}
/// A cache that keeps every token, on a pool of so many pages.
template <class Policy>
struct SmallCacheOnPool {
  tersekv::cuda::BasicPagePool<Runtime> pool;
  tersekv::cuda::BasicWorkspace<Runtime> workspace;
  SmallCache<Policy> cache;

  SmallCacheOnPool(Index pages, Index sequences)
      : pool(pages),
        cache(small_config(sequences, tersekv::kUnlimited), {},
              {.max_chunk = 200, .max_length = 200}, pool, workspace) {}
};
inline Tokens small_tokens(support::Random& random, Index count) {
  return Tokens(random, count, kHeads, kGroup, kDim);
}

/// Launches of other shapes (more rows at once, other splits) add up in another order.
inline constexpr double kRounding = 1e-5;
inline bool close(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && static_cast<bool>(support::close_all(a, b, kRounding, kRounding));
}

template <class Cache>
void same_entries(Cache& a, Index sequence_a, Cache& b, Index sequence_b) {
  const auto host_a = a.synchronize_to_host(), host_b = b.synchronize_to_host();
  for (Index h = 0; h < kHeads; ++h) {
    const auto x = host_a.entries(sequence_a, h), y = host_b.entries(sequence_b, h);
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      CHECK(x[i].position == y[i].position);
      CHECK(x[i].weight == y[i].weight);
      CHECK(support::close(x[i].score, y[i].score, kRounding, kRounding));
      CHECK(support::close_all(x[i].key, y[i].key, kRounding, kRounding));
      CHECK(support::close_all(x[i].value, y[i].value, kRounding, kRounding));
    }
  }
}

/// All sequences of two caches hold the same, to the bit.
template <class Cache>
void same_bits(Cache& a, Cache& b) {
  const auto host_a = a.synchronize_to_host(), host_b = b.synchronize_to_host();
  for (Index s = 0; s < a.config().num_sequences; ++s) {
    for (Index h = 0; h < a.config().num_kv_heads; ++h) {
      const auto x = host_a.entries(s, h), y = host_b.entries(s, h);
      REQUIRE(x.size() == y.size());
      CHECK(a.counts(s, h).evictions == b.counts(s, h).evictions);
      for (std::size_t i = 0; i < x.size(); ++i) {
        REQUIRE(x[i].position == y[i].position);
        REQUIRE(x[i].weight == y[i].weight);
        REQUIRE(x[i].score == y[i].score);
        REQUIRE(x[i].key == y[i].key);
        REQUIRE(x[i].value == y[i].value);
      }
    }
  }
}

}  // namespace on_device
