// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/chunk.hpp"
#include "tersekv/view.hpp"

namespace tersekv::cuda {

/// Consecutive sequences of a cache; a number stands for that one.
struct Sequences {
  Index first = 0, count = 1;
  Sequences(Index sequence) : first(sequence) {}  // NOLINT: implicit by design
  Sequences(Index first_sequence, Index how_many) : first(first_sequence), count(how_many) {}
};

/// New tokens of consecutive sequences, as many for each: a decode step of a whole batch (one token
/// each), or a prompt of one sequence. Views are of device memory, [tokens, heads, head_dim], the
/// tokens of a sequence together; T = float, Half or BFloat16. `out` may be exactly the view of
/// `q`.
template <Element T>
struct Batch {
  Sequences sequences = 0;
  TokenView<const T> q, k, v;  ///< keys and queries already rotated
  TokenView<T> out;
  ScoreView token_scores = {};  ///< [tokens, kv_heads], for policies that need them
  float* lse = nullptr;         ///< [tokens, num_q_heads], natural log, or null

  Batch() = default;
  Batch(Sequences which, TokenView<const T> queries, TokenView<const T> keys,
        TokenView<const T> values, TokenView<T> output)
      : sequences(which), q(queries), k(keys), v(values), out(output) {}
  explicit Batch(const Chunk<T>& chunk)
      : sequences(chunk.sequence),
        q(chunk.q),
        k(chunk.k),
        v(chunk.v),
        out(chunk.out),
        token_scores(chunk.token_scores),
        lse(chunk.lse) {}
};

}  // namespace tersekv::cuda
