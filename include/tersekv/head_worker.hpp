// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "tersekv/attention.hpp"
#include "tersekv/chunk.hpp"
#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/view.hpp"
#include "tersekv/workspace.hpp"

namespace tersekv::detail {

/// Entries that a head comes to in a call that brings `tokens` more and compresses after `every`:
/// those of a step beside what there was before the call, or may be after a step.
template <class PolicyType>
Index most_in_call(const PolicyType& policy, const Shape& shape, const HeadState& state,
                   Index tokens, Index every) {
  const Index all = state.length + tokens;
  if (every <= 0) return all;
  const Index most = std::max(state.length, policy.max_length(shape, state.budget, every));
  return most < all ? std::min(all, most + std::min(every, tokens)) : all;
}

/// One worker's work on one KV head: the verbs of a cache, after all checks, with pages and scratch
/// at hand; where several workers share a head, each does some part of a verb, and the last of them
/// the rest. What verbs, or several of them, do with floats is never inlined: -ffast-math may round
/// otherwise in every copy of a body, and each way of running it, serial or by threads, must give
/// the same bits. `next_pages` are of the head that the worker comes to next, if that can be
/// said.
template <class PolicyType, class HeadType>
class HeadWorker {
  using Tiled = TiledAttention<typename HeadType::Key, typename HeadType::Value>;

 public:
  HeadWorker(const PolicyType& policy, GroupReduce reduce, Index kv_head, const HeadType& head,
             const Spaces& spaces, PageTable next_pages = {})
      : policy_(policy),
        reduce_(reduce),
        kv_head_(kv_head),
        head_(head),
        spaces_(spaces),
        next_pages_(next_pages) {}

  template <class T>
  void append(const TokenView<const T>& k, const TokenView<const T>& v, const ScoreView& scores) {
    count_tokens(k.tokens);
    write_tokens(k, v, scores);
  }

  /// Attention of the last q.tokens tokens; the rows are written, not observed.
  template <class T>
  [[gnu::noinline]] void attend(const TokenView<const T>& q, const TokenView<T>& out,
                                const AttendOutputs& outputs) {
    if (outputs.rows.data == nullptr) return attend_rows(q, 0, q.tokens, 0, out, outputs.lse);
    for (Index r = 0; r < q.tokens; ++r) {
      const AttentionRequest request = request_to_show(q, r, outputs);
      tersekv::attend(head_, request, spaces_.attention());
      write(request, r, out, outputs.lse);
    }
  }
  /// The same by several workers, where `parts_of_attend` says how many may share it.
  template <class T>
  [[gnu::noinline]] void attend_part(const TokenView<const T>& q, const TokenView<T>& out,
                                     const AttendOutputs& outputs, Index part, Index parts) {
    if (q.tokens == 1) return do_sections(request_to_show(q, 0, outputs), part, parts);
    attend_rows(q, 0, q.tokens, 0, out, outputs.lse, part, parts);
  }
  template <class T>
  [[gnu::noinline]] void attend_rest(const TokenView<const T>& q, const TokenView<T>& out,
                                     const AttendOutputs& outputs) {
    if (q.tokens > 1) return;
    const AttentionRequest request = request_to_show(q, 0, outputs);
    attend_join(head_, request, spaces_.attention());
    write(request, 0, out, outputs.lse);
  }
  template <class T>
  Index parts_of_attend(const TokenView<const T>& q, const AttendOutputs& outputs,
                        bool awake) const {
    if (q.tokens == 1) return most_parts_of(head_.length(), awake);
    return outputs.rows.data == nullptr ? blocks_of(q.tokens) : 1;
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
      const AttentionRequest request = request_to_observe(q, r, false);
      tersekv::attend(head_, request, spaces_.attention());
      show(request, r == first);
    }
  }
  /// The same by several workers.
  template <class T>
  [[gnu::noinline]] void observe_part(const TokenView<const T>& q, Index part, Index parts) {
    do_sections(request_to_observe(q, 0, false), part, parts);
  }
  template <class T>
  [[gnu::noinline]] void observe_rest(const TokenView<const T>& q) {
    const AttentionRequest request = request_to_observe(q, 0, false);
    attend_join(head_, request, spaces_.attention());
    show(request, true);
  }
  template <class T>
  Index parts_of_observe(const TokenView<const T>& q) const {
    return q.tokens == 1 && wanted_rows(1) == 1 ? most_parts_of(head_.length(), false) : 1;
  }

  [[gnu::noinline]] void compress() {
    policy_.compress(team_, head_);
    head_.state().note_compression();
  }

  template <class T>
  [[gnu::noinline]] void extend(const Chunk<T>& chunk, Index compress_every) {
    const Index tokens = chunk.k.tokens;
    if (tokens == 0) return;
    const Index step = compress_every > 0 ? compress_every : tokens;
    const Index before = head_.length();
    const PageTable next_pages = std::exchange(next_pages_, {});  // after the last step
    for (Index start = 0; start < tokens; start += step) {
      if (start + step >= tokens) next_pages_ = next_pages;
      const Index rows = std::min(step, tokens - start);
      append(chunk.k.rows(start, rows), chunk.v.rows(start, rows), chunk.token_scores.rows(start));
      const TokenView<const T> q = chunk.q.rows(start, rows);
      const Index first_observed = rows - wanted_rows(rows);
      attend_rows(q, 0, first_observed, start, chunk.out, chunk.lse);
      attend_and_observe(q, first_observed, start, chunk);
      if (compress_every != kNever) compress_after(rows, before);
    }
  }
  /// The same by several workers: before they begin, for one of them.
  template <class T>
  void begin_extend(const Chunk<T>& chunk) {
    count_tokens(chunk.k.tokens);
    if (chunk.k.tokens > 1) write_tokens(chunk.k, chunk.v, chunk.token_scores);
  }
  /// A single token is written by who reads it, and mostly has the rest to do, as a key lies in
  /// many cache lines. Nobody else comes to where it lies (`first_section_of`).
  template <class T>
  [[gnu::noinline]] void extend_part(const Chunk<T>& chunk, Index part, Index parts) {
    const Index tokens = chunk.k.tokens;
    if (tokens == 1) {
      if (part == parts - 1) write_tokens(chunk.k, chunk.v, chunk.token_scores);
      return do_sections(request_to_extend(chunk.q), part, parts);
    }
    attend_rows(chunk.q, 0, tokens - wanted_rows(tokens), 0, chunk.out, chunk.lse, part, parts);
  }
  template <class T>
  [[gnu::noinline]] void extend_rest(const Chunk<T>& chunk, Index compress_every) {
    const Index tokens = chunk.k.tokens, observed = wanted_rows(tokens);
    if (tokens == 1) {
      const AttentionRequest request = request_to_extend(chunk.q);
      attend_join(head_, request, spaces_.attention());
      if (observed == 1) show(request, true);
      write(request, 0, chunk.out, chunk.lse);
    } else {
      attend_and_observe(chunk.q, tokens - observed, 0, chunk);
    }
    if (compress_every != kNever) compress_after(tokens, head_.length() - tokens);
  }
  /// Before the append.
  template <class T>
  Index parts_of_extend(const Chunk<T>& chunk, Index compress_every, bool awake) const {
    const Index tokens = chunk.k.tokens;
    if (tokens == 1) {
      return most_parts_of(head_.length() + 1, awake && PolicyType::observes == Observes::nothing);
    }
    if (compress_every > 0 && compress_every < tokens) return 1;  // step by step
    return blocks_of(tokens - (PolicyType::observes == Observes::nothing
                                   ? 0
                                   : std::min(tokens, policy_.observed_rows(tokens))));
  }

 private:
  /// The first of an append: all but what the tokens' slots hold.
  void count_tokens(Index tokens) {
    head_.state().length += tokens;
    head_.state().note_append(tokens);
  }
  /// The second: what they hold.
  template <class T>
  [[gnu::noinline]] void write_tokens(const TokenView<const T>& k, const TokenView<const T>& v,
                                      const ScoreView& scores) {
    const HeadState& state = head_.state();
    const Index tokens = k.tokens, first = state.length - tokens;
    for (Index t = 0; t < tokens; ++t) {
      const Index slot = first + t;
      k.with_row(t, kv_head_, [&](auto key) {
        head_.write_key(slot, [&](Index j) { return to_float(key(j)); });
      });
      v.with_row(t, kv_head_, [&](auto value) {
        head_.write_value(slot, [&](Index j) { return to_float(value(j)); });
      });
      head_.set_position(slot, state.seen - tokens + t);
      if constexpr (PolicyType::uses_weights) head_.set_weight(slot, 1.0f);
      head_.clear_statistics(slot);
    }
    const float* token_scores = nullptr;
    if constexpr (PolicyType::needs_token_scores) {
      for (Index t = 0; t < tokens; ++t) head_.scratch().floats[t] = scores(t, kv_head_);
      token_scores = head_.scratch().floats;
    }
    policy_.append(team_, head_, first, tokens, token_scores);
  }

  /// After `rows` tokens: no more entries may be left than the policy says, or than there were
  /// `before` the call.
  void compress_after(Index rows, Index before) {
    compress();
    const HeadState& state = head_.state();
    const Index most = std::max(before, policy_.max_length(head_.shape(), state.budget, rows));
    if (state.length <= most) return;
    throw std::logic_error(
        text({"tersekv: policy: expected at most ", most,
              " entries after a compression, as its max_length says, got ", state.length}));
  }

  /// How many of the last `rows` rows the policy asks for. The rows may be fewer than the tokens
  /// they belong to, and more than the latest append brought.
  Index wanted_rows(Index rows) const {
    if (PolicyType::observes == Observes::nothing || rows == 0) return 0;
    const Index wanted = policy_.observed_rows(std::max(rows, Index{head_.state().newest}));
    return std::clamp(wanted, Index{0}, rows);
  }

  /// Blocks of rows that are worked on at a time; one of none, for which there may be no room yet.
  Index blocks_of(Index rows) const {
    if (rows == 0) return 1;
    const Index at_once = spaces_.worker.tokens;
    return (rows + at_once - 1) / at_once;
  }

  /// Rows [first, last) of the last q.tokens, into `out` from row `start` + first on; of their
  /// blocks every `parts`-th, as those of the last tokens see the most.
  template <class T>
  void attend_rows(const TokenView<const T>& q, Index first, Index last, Index start,
                   const TokenView<T>& out, float* lse, Index part = 0, Index parts = 1) {
    const Index group = head_.shape().group_size;
    const bool tiled = is_tiled(q.tokens, group);
    const Index at_once = !tiled && tiles_pay() ? 1 : spaces_.worker.tokens;
    for (Index r = first + part * at_once; r < last; r += parts * at_once) {
      AttentionRequest request = request_for(q, r, std::min(at_once, last - r));
      if (tiled) request.tiling = Tiling::chunk;
      tersekv::attend(head_, request, spaces_.attention());
      write(request, start + r, out, lse);
    }
  }
  /// Rows from `first` on, one by one, of those that the chunk has from `start` on.
  template <class T>
  void attend_and_observe(const TokenView<const T>& q, Index first, Index start,
                          const Chunk<T>& chunk) {
    for (Index r = first; r < q.tokens; ++r) {
      const AttentionRequest request = request_to_observe(q, r, true);
      tersekv::attend(head_, request, spaces_.attention());
      show(request, r == first);
      write(request, start + r, chunk.out, chunk.lse);
    }
  }
  /// Share `part` of one token's sections.
  void do_sections(const AttentionRequest& request, Index part, Index parts) {
    const auto first = [&](Index p) { return first_section_of(p, parts, request.visible); };
    tersekv::attend_part(head_, request, spaces_.attention(), first(part), first(part + 1));
  }

  /// The request for rows [r, r + tokens) of the last q.tokens; copies the group's queries.
  template <class T>
  [[gnu::noinline]] AttentionRequest request_for(const TokenView<const T>& q, Index r,
                                                 Index tokens) {
    const Index group = head_.shape().group_size, dim = head_.head_dim();
    float* query = spaces_.worker.query;
    for (Index t = 0; t < tokens; ++t) {
      for (Index g = 0; g < group; ++g, query += dim) {
        q.for_each_element(r + t, kv_head_ * group + g,
                           [&](const T& x, Index j) { query[j] = to_float(x); });
      }
    }
    const Index later = q.tokens - r - tokens;
    return {.query = spaces_.worker.query,
            .tokens = tokens,
            .visible = head_.length() - later,
            .alpha = PolicyType::uses_weights ? policy_.alpha() : 0.0f,
            .reduce = reduce_,
            .out = spaces_.worker.out,
            .lse = spaces_.worker.lse,
            .tiling = tokens == 1 && tiles_pay() ? Tiling::token : Tiling::none,
            .next_pages = later == 0 ? next_pages_ : PageTable()};
  }
  /// Whether tile registers work on a single token.
  bool tiles_pay() const {
    const Index block = block_entries(head_.page_size());
    return Tiled::pays(head_.shape().group_size, head_.head_dim(), block);
  }

  /// The request for row r, whose attention the caller may want.
  template <class T>
  AttentionRequest request_to_show(const TokenView<const T>& q, Index r,
                                   const AttendOutputs& outputs) {
    AttentionRequest request = request_for(q, r, 1);
    if (outputs.rows.data != nullptr) request.attention = outputs.rows.row(r, kv_head_);
    return request;
  }
  /// The request for row r with what the policy observes; without `output` from the keys alone.
  template <class T>
  AttentionRequest request_to_observe(const TokenView<const T>& q, Index r, bool output) {
    AttentionRequest request = request_for(q, r, 1);
    if (!output) request.out = nullptr;
    if constexpr (PolicyType::observes == Observes::logits) {
      request.logits = spaces_.head.raw_logits;
    }
    if constexpr (PolicyType::observes == Observes::attention) {
      request.attention = spaces_.head.attention;
    }
    return request;
  }
  /// The request for one token, with what the policy observes if it does.
  template <class T>
  AttentionRequest request_to_extend(const TokenView<const T>& q) {
    return wanted_rows(1) == 1 ? request_to_observe(q, 0, true) : request_for(q, 0, 1);
  }
  /// Shows the policy what the request came to.
  [[gnu::noinline]] void show(const AttentionRequest& request, bool first) {
    policy_.observe(team_, head_,
                    Observation{.visible = request.visible,
                                .first = first,
                                .attention = request.attention,
                                .logits = request.logits,
                                .logit_stride = spaces_.head.shared.stride,
                                .lse = request.lse,
                                .query = request.query});
  }

  template <class T>
  [[gnu::noinline]] void write(const AttentionRequest& request, Index first,
                               const TokenView<T>& out, float* lse) const {
    const Index group = head_.shape().group_size, dim = head_.head_dim();
    for (Index row = 0; row < request.tokens * group; ++row) {
      const Index r = first + row / group, q_head = kv_head_ * group + row % group;
      out.for_each_element(r, q_head,
                           [&](T& x, Index j) { x = to_output<T>(request.out[row * dim + j]); });
      if (lse != nullptr) lse[r * out.heads + q_head] = request.lse[row];
    }
  }

  const PolicyType& policy_;
  GroupReduce reduce_;
  Index kv_head_;
  HeadType head_;
  Spaces spaces_;
  PageTable next_pages_;
  SerialTeam team_;
};

}  // namespace tersekv::detail
