// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/attention.hpp"
#include "tersekv/chunk.hpp"
#include "tersekv/config.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/view.hpp"
#include "tersekv/workspace.hpp"

namespace tersekv::detail {

/// One worker's work on one KV head: the verbs of a cache, after all checks, with pages and scratch
/// at hand. Never inlined: -ffast-math may round otherwise in every copy of a body, and each way of
/// running it, serial or by threads, must give the same bits.
template <class PolicyType, class HeadType>
class HeadWorker {
 public:
  HeadWorker(const PolicyType& policy, GroupReduce reduce, Index kv_head, const HeadType& head,
             Workspace& space)
      : policy_(policy), reduce_(reduce), kv_head_(kv_head), head_(head), space_(space) {}

  template <class T>
  [[gnu::noinline]] void append(const TokenView<const T>& k, const TokenView<const T>& v,
                                const ScoreView& scores) {
    HeadState& state = head_.state();
    const Index first = state.length, tokens = k.tokens;
    state.length += tokens;
    for (Index t = 0; t < tokens; ++t) {
      const Index slot = first + t;
      head_.write_key(slot, [&](Index j) { return to_float(k(t, kv_head_, j)); });
      head_.write_value(slot, [&](Index j) { return to_float(v(t, kv_head_, j)); });
      head_.set_position(slot, state.seen + t);
      if constexpr (PolicyType::uses_weights) head_.set_weight(slot, 1.0f);
      head_.clear_statistics(slot);
    }
    state.note_append(tokens);
    const float* token_scores = nullptr;
    if constexpr (PolicyType::needs_token_scores) {
      for (Index t = 0; t < tokens; ++t) head_.scratch().floats[t] = scores(t, kv_head_);
      token_scores = head_.scratch().floats;
    }
    policy_.append(team_, head_, first, tokens, token_scores);
  }

  /// Attention of the last q.tokens tokens; the rows are written, not observed.
  template <class T>
  [[gnu::noinline]] void attend(const TokenView<const T>& q, const TokenView<T>& out,
                                const AttendOutputs& outputs) {
    if (outputs.rows.data == nullptr) return attend_rows(q, 0, q.tokens, 0, out, outputs.lse);
    for (Index r = 0; r < q.tokens; ++r) {
      AttentionRequest request = request_for(q, r, 1);
      request.attention = outputs.rows.row(r, kv_head_);
      tersekv::attend(head_, request, space_.attention_buffers());
      write(request, r, out, outputs.lse);
    }
  }

  /// Rows of the last rows.rows queries, as the engine computed them.
  [[gnu::noinline]] void observe(const AttentionRows<const float>& rows) {
    const Index first = rows.rows - wanted_rows(rows.rows);
    for (Index r = first; r < rows.rows; ++r) {
      policy_.observe(team_, head_,
                      Observation{.visible = head_.length() - (rows.rows - 1 - r),
                                  .first = r == first,
                                  .attention = rows.row(r, kv_head_)});
    }
  }

  /// The last q.tokens queries, their attention computed here, from the keys alone.
  template <class T>
  [[gnu::noinline]] void observe(const TokenView<const T>& q) {
    const Index first = q.tokens - wanted_rows(q.tokens);
    for (Index r = first; r < q.tokens; ++r) {
      AttentionRequest request = request_for(q, r, 1);
      request.out = nullptr;
      attend_and_observe(request, r == first);
    }
  }

  [[gnu::noinline]] void compress() {
    policy_.compress(team_, head_);
    head_.state().note_compression();
  }

  template <class T>
  [[gnu::noinline]] void extend(const Chunk<T>& chunk, Index compress_every) {
    const Index tokens = chunk.k.tokens;
    const Index step = compress_every > 0 ? compress_every : tokens;
    for (Index start = 0; start < tokens; start += step) {
      const Index rows = std::min(step, tokens - start);
      append(chunk.k.rows(start, rows), chunk.v.rows(start, rows), chunk.token_scores.rows(start));
      const TokenView<const T> q = chunk.q.rows(start, rows);
      const Index first_observed = rows - wanted_rows(rows);
      attend_rows(q, 0, first_observed, start, chunk.out, chunk.lse);
      for (Index r = first_observed; r < rows; ++r) {
        AttentionRequest request = request_for(q, r, 1);
        attend_and_observe(request, r == first_observed);
        write(request, start + r, chunk.out, chunk.lse);
      }
      if (compress_every != kNever) compress();
    }
  }

 private:
  /// How many of the last `rows` rows the policy asks for. The rows may be fewer than the tokens
  /// they belong to, and more than the latest append brought.
  Index wanted_rows(Index rows) const {
    if (PolicyType::observes == Observes::nothing || rows == 0) return 0;
    return std::min(rows, policy_.observed_rows(std::max(rows, head_.state().newest)));
  }

  /// Rows [first, last) of the last q.tokens, into `out` from row `start` + first on.
  template <class T>
  void attend_rows(const TokenView<const T>& q, Index first, Index last, Index start,
                   const TokenView<T>& out, float* lse) {
    const Index at_once = tokens_at_once(head_.shape().group_size);
    for (Index r = first; r < last; r += at_once) {
      const AttentionRequest request = request_for(q, r, std::min(at_once, last - r));
      tersekv::attend(head_, request, space_.attention_buffers());
      write(request, start + r, out, lse);
    }
  }

  /// The request for rows [r, r + tokens) of the last q.tokens; copies the group's queries.
  template <class T>
  AttentionRequest request_for(const TokenView<const T>& q, Index r, Index tokens) {
    const Index group = head_.shape().group_size, dim = head_.head_dim();
    float* query = space_.query();
    for (Index t = 0; t < tokens; ++t) {
      for (Index g = 0; g < group; ++g, query += dim) {
        for (Index j = 0; j < dim; ++j) query[j] = to_float(q(r + t, kv_head_ * group + g, j));
      }
    }
    return {.query = space_.query(),
            .tokens = tokens,
            .visible = head_.length() - (q.tokens - r - tokens),
            .alpha = PolicyType::uses_weights ? policy_.alpha() : 0.0f,
            .reduce = reduce_,
            .out = space_.out(),
            .lse = space_.lse()};
  }

  void attend_and_observe(AttentionRequest& request, bool first) {
    if constexpr (PolicyType::observes == Observes::logits) request.logits = space_.raw_logits();
    if constexpr (PolicyType::observes == Observes::attention) {
      request.attention = space_.attention();
    }
    tersekv::attend(head_, request, space_.attention_buffers());
    policy_.observe(team_, head_,
                    Observation{.visible = request.visible,
                                .first = first,
                                .attention = request.attention,
                                .logits = request.logits,
                                .logit_stride = space_.entries(),
                                .lse = request.lse,
                                .query = request.query});
  }

  template <class T>
  void write(const AttentionRequest& request, Index first, const TokenView<T>& out,
             float* lse) const {
    const Index group = head_.shape().group_size, dim = head_.head_dim();
    for (Index row = 0; row < request.tokens * group; ++row) {
      const Index r = first + row / group, q_head = kv_head_ * group + row % group;
      for (Index j = 0; j < dim; ++j) {
        out(r, q_head, j) = from_float<T>(request.out[row * dim + j]);
      }
      if (lse != nullptr) lse[r * out.heads + q_head] = request.lse[row];
    }
  }

  const PolicyType& policy_;
  GroupReduce reduce_;
  Index kv_head_;
  HeadType head_;
  Workspace& space_;
  SerialTeam team_;
};

}  // namespace tersekv::detail
