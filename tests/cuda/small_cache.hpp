// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device_tokens.hpp"

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
inline Tokens small_tokens(support::Random& random, Index count) {
  return Tokens(random, count, kHeads, kGroup, kDim);
}

}  // namespace on_device
