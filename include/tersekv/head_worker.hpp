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
      for (Index j = 0; j < head_.head_dim(); ++j) {
        head_.set_key(slot, j, to_float(k(t, kv_head_, j)));
        head_.set_value(slot, j, to_float(v(t, kv_head_, j)));
      }
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
    for (Index r = 0; r < q.tokens; ++r) {
      RowRequest request = row_request(q, r);
      if (outputs.rows.data != nullptr) request.attention = space_.attention();
      attend_row(head_, request, space_.attention_buffers());
      write_row(request, r, out, outputs.lse);
      if (request.attention != nullptr) {
        std::copy_n(request.attention, request.visible, outputs.rows.row(r, kv_head_));
      }
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
      RowRequest request = row_request(q, r);
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
      for (Index r = 0; r < rows; ++r) {
        RowRequest request = row_request(q, r);
        if (r < first_observed) {
          attend_row(head_, request, space_.attention_buffers());
        } else {
          attend_and_observe(request, r == first_observed);
        }
        write_row(request, start + r, chunk.out, chunk.lse);
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

  /// The request for row r of the last q.tokens; copies the group's queries.
  template <class T>
  RowRequest row_request(const TokenView<const T>& q, Index r) {
    const Index group = head_.shape().group_size, dim = head_.head_dim();
    float* query = space_.query();
    for (Index g = 0; g < group; ++g) {
      for (Index j = 0; j < dim; ++j) query[g * dim + j] = to_float(q(r, kv_head_ * group + g, j));
    }
    return {.query = query,
            .visible = head_.length() - (q.tokens - 1 - r),
            .alpha = PolicyType::uses_weights ? policy_.alpha() : 0.0f,
            .reduce = reduce_,
            .out = space_.out(),
            .lse = space_.lse()};
  }

  void attend_and_observe(RowRequest& request, bool first) {
    if constexpr (PolicyType::observes == Observes::logits) request.logits = space_.raw_logits();
    if constexpr (PolicyType::observes == Observes::attention) {
      request.attention = space_.attention();
    }
    attend_row(head_, request, space_.attention_buffers());
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
  void write_row(const RowRequest& request, Index r, const TokenView<T>& out, float* lse) const {
    const Index group = head_.shape().group_size, dim = head_.head_dim();
    for (Index g = 0; g < group; ++g) {
      const Index q_head = kv_head_ * group + g;
      for (Index j = 0; j < dim; ++j) out(r, q_head, j) = from_float<T>(request.out[g * dim + j]);
      if (lse != nullptr) lse[r * out.heads + q_head] = request.lse[g];
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
