// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>

#include "tersekv/c_math.hpp"
#include "tersekv/checks.hpp"
#include "tersekv/chunk.hpp"
#include "tersekv/chunks_apart.hpp"
#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/footprint.hpp"
#include "tersekv/head_store.hpp"
#include "tersekv/view.hpp"

namespace tersekv::detail {

/// What a head of such a cache is, after a look at all that it is made of.
template <class PolicyType>
[[gnu::cold]] Shape checked_shape(const CacheConfig& config, const PolicyType& policy,
                                  int workers) {
  check_config(config);
  require(workers >= 1, "executor.workers()", "at least 1", workers);
  const float scale = config.scale != 0.0f
                          ? config.scale
                          : 1.0f / detail::sqrt(static_cast<float>(config.head_dim));
  const Shape shape{config.num_q_heads / config.num_kv_heads, config.head_dim, config.layer, scale};
  if (PolicyType::needs_budget && config.budget.size() == 0) {
    refuse({"budget"}, {"entries per KV head (kUnlimited to keep all)"}, {"none"});
  }
  for (Index h = 0; h < config.num_kv_heads; ++h) policy.validate(shape, config.budget.of(h));
  return shape;
}

/// What the calls of a cache check about their arguments. Each throws where something is wrong:
/// std::invalid_argument, std::length_error for too many tokens.
template <class PolicyType, class KeyCodec, class ValueCodec>
struct CallChecks {
  const CacheConfig& config;
  const HeadStore<KeyCodec, ValueCodec>& store;

  void sequence(Index sequence) const {
    // As many as there are heads for: none in a cache that was moved from.
    require_index("sequence", sequence, store.heads() / config.num_kv_heads);
  }
  void head(Index sequence, Index kv_head) const {
    this->sequence(sequence);
    require_index("kv_head", kv_head, config.num_kv_heads);
  }

  void more_tokens(Index sequence, Index tokens, const ExtendOptions& given = {}) const {
    this->sequence(sequence);
    options(given);
    check_count(tokens, state(sequence, 0).seen);
  }
  void options(const ExtendOptions& options) const {
    require(options.compress_every >= kNever, "compress_every", "kNever, 0 or more",
            options.compress_every);
  }

  void rewind(Index sequence, Index tokens) const {
    this->sequence(sequence);
    Index most = state(sequence, 0).most_rewound();
    // The same of all heads, but where a policy or an executor threw half-way.
    for (Index h = 1; h < config.num_kv_heads; ++h) {
      most = std::min(most, state(sequence, h).most_rewound());
    }
    check_rewind(tokens, most);
  }

  template <class T>
  void tokens(Index sequence, const TokenView<const T>& k, const TokenView<const T>& v,
              const ScoreView& scores) const {
    more_tokens(sequence, k.tokens);
    check_extents("k", k, k.tokens, config.num_kv_heads, config.head_dim);
    check_extents("v", v, k.tokens, config.num_kv_heads, config.head_dim);
    check_values("k", sequence, k, Codec<KeyCodec>::max_magnitude);
    check_values("v", sequence, v, Codec<ValueCodec>::max_magnitude);
    if constexpr (PolicyType::needs_token_scores) {
      check_scores(scores, k.tokens, config.num_kv_heads);
    }
  }
  template <class T>
  void chunks(std::span<const Chunk<T>> chunks) const {
    for (const Chunk<T>& each : chunks) chunk(each);
    check_chunks_apart(ChunkList(chunks));
  }

  template <class T>
  void queries(Index sequence, const TokenView<const T>& q) const {
    // After a compression the latest token alone may still be asked about.
    rows("tokens of q", sequence, q.tokens, 1);
    check_extents("q", q, q.tokens, config.num_q_heads, config.head_dim);
    check_values("q", sequence, q, kMaxMagnitude);
  }
  template <class T>
  void outputs(Index sequence, const TokenView<const T>& q, const TokenView<T>& out,
               const AttendOutputs& outputs) const {
    check_extents("out", out, q.tokens, config.num_q_heads, config.head_dim);
    check_output(q, {}, {}, out);
    const Footprint lse = lse_footprint(outputs.lse, q.tokens, config.num_q_heads);
    check_beside("lse", lse, {q, out});
    if (outputs.rows.data == nullptr) return;
    require_equal("rows", outputs.rows.rows, q.tokens);
    check_beside("rows", check_row_strides(outputs.rows, config.num_kv_heads, longest(sequence)),
                 {q, out, lse});
  }

  /// Attention that the caller's kernel computed.
  void attention(Index sequence, const AttentionRows<const float>& given) const {
    rows("rows", sequence, given.rows, 0);  // a compression moves what rows speak of
    if (given.data == nullptr && given.rows > 0) refuse({"rows"}, {"attention"}, {"null"});
    check_row_strides(given, config.num_kv_heads, longest(sequence));
    for (Index h = 0; h < config.num_kv_heads; ++h) {
      check_attention(given, h, state(sequence, h).length, config.num_q_heads / config.num_kv_heads,
                      config.group_reduce);
    }
  }

 private:
  const HeadState& state(Index sequence, Index kv_head) const {
    return store.state(sequence * config.num_kv_heads + kv_head);
  }
  Index longest(Index sequence) const {
    return store.longest(sequence * config.num_kv_heads, config.num_kv_heads);
  }

  template <class T>
  void chunk(const Chunk<T>& chunk) const {
    tokens(chunk.sequence, chunk.k, chunk.v, chunk.token_scores);
    const Index tokens = chunk.k.tokens;
    check_extents("q", chunk.q, tokens, config.num_q_heads, config.head_dim);
    check_extents("out", chunk.out, tokens, config.num_q_heads, config.head_dim);
    check_values("q", chunk.sequence, chunk.q, kMaxMagnitude);
    check_written(footprints_of(chunk));
  }
  /// `what`: rows of attention, or queries; `compressed`: so many where no tokens came since.
  void rows(const char* what, Index sequence, Index rows, Index compressed) const {
    this->sequence(sequence);
    for (Index h = 0; h < config.num_kv_heads; ++h) {
      const HeadState& head = state(sequence, h);
      const Index most = std::max(head.fresh, std::min(head.length, compressed));
      if (rows >= 0 && rows <= most) continue;
      refuse({what},
             {"0 to ", most, ", as ", head.fresh, " tokens came since the last compression"},
             {rows});
    }
  }
};

}  // namespace tersekv::detail
