// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/view.hpp"

namespace tersekv {

/// New tokens of one sequence, T = float, Half or BFloat16. All views are [tokens, heads, head_dim]
/// with the cache's own heads and head_dim; `out` may be exactly the view of `q`.
template <Element T>
struct Chunk {
  Index sequence = 0;
  TokenView<const T> q, k, v;  ///< keys and queries already rotated
  TokenView<T> out;
  ScoreView token_scores = {};  ///< [tokens, kv_heads], for policies that need them
  float* lse = nullptr;         ///< [tokens, num_q_heads], natural log, memory of its own, or null
};

struct ExtendOptions {
  /// The policy compresses after this many rows: 0 = once, after all of the call; 1 = exact
  /// token-by-token semantics; kNever = not in this call. What lies between two compressions is one
  /// chunk to the policy where one call brings it, several where several do: a policy that looks at
  /// a chunk's last `window` queries looks at those of each call.
  Index compress_every = 0;
};

struct AttendOutputs {
  // Both in memory of their own:
  float* lse = nullptr;            ///< [tokens, num_q_heads], natural log, or null
  AttentionRows<float> rows = {};  ///< group-reduced attention per entry, in slot order, or empty
};

}  // namespace tersekv
