// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "bandwidth.hpp"
#include "tokens.hpp"

// A decode step by the verbs, each timed by itself.
namespace tersekv::bench {

/// What a policy that observes is given: the attention that `attend` worked out anyway (who
/// observes logits: those, worked out off the clock), or the query.
enum class Handed { rows, queries };

/// Seconds of one step.
struct VerbSeconds {
  double append = 0, attend = 0, observe = 0, compress = 0;
  double all() const { return append + attend + observe + compress; }
};

/// Numbers from one row of products to the next: `key_products` writes behind the last, too.
inline Index row_stride(Index longest) { return (longest + 127) / 64 * 64; }

/// `append` as the cache's policy wants it.
template <class Cache>
void append_tokens(Cache& cache, const Tokens& tokens) {
  if constexpr (std::remove_cvref_t<decltype(cache.policy())>::needs_token_scores) {
    cache.append(0, tokens.k(), tokens.v(), tokens.scores());
  } else {
    cache.append(0, tokens.k(), tokens.v());
  }
}

/// One token: append, attend, observe, compress. `executor` runs the observation of logits, which
/// is no verb of the cache.
template <Handed handed, class Cache, class Executor = SerialExecutor>
class DecodeStep {
  using PolicyType = std::remove_cvref_t<decltype(std::declval<Cache&>().policy())>;

 public:
  explicit DecodeStep(const Heads& heads, Executor executor = {})
      : heads_(heads),
        executor_(executor),
        out_(static_cast<std::size_t>(heads.kv * heads.group * heads.dim)),
        lse_(static_cast<std::size_t>(heads.kv * heads.group)) {}

  VerbSeconds operator()(Cache& cache, const Tokens& token) {
    VerbSeconds seconds;
    seconds.append = seconds_of([&] { append_tokens(cache, token); });
    Index longest = 0;
    for (Index h = 0; h < heads_.kv; ++h) longest = std::max(longest, cache.length(0, h));
    const Index stride = row_stride(longest);
    if constexpr (kRows) rows_.resize(static_cast<std::size_t>(stride * heads_.kv));
    if constexpr (kLogits) rows_.resize(static_cast<std::size_t>(stride) * lse_.size());
    AttendOutputs outputs{.lse = lse_.data()};
    if constexpr (kRows) outputs.rows = {rows_.data(), 1, 0, stride};
    const TokenView<float> out = nhd_view(out_.data(), 1, heads_.kv * heads_.group, heads_.dim);
    seconds.attend = seconds_of([&] { cache.attend(0, token.q(), out, outputs); });
    if constexpr (kRows) {
      const AttentionRows<const float> rows{rows_.data(), 1, 0, stride};
      seconds.observe = seconds_of([&] { cache.observe(0, rows); });
    } else if constexpr (kLogits) {
      seconds.observe = observe_logits(cache, token, stride);
    } else if constexpr (PolicyType::observes != Observes::nothing) {
      seconds.observe = seconds_of([&] { cache.observe(0, token.q()); });
    }
    seconds.compress = seconds_of([&] { cache.compress(0); });
    return seconds;
  }

 private:
  static constexpr bool kRows =
      handed == Handed::rows && PolicyType::observes == Observes::attention;
  static constexpr bool kLogits =
      handed == Handed::rows && PolicyType::observes == Observes::logits;

  double observe_logits(Cache& cache, const Tokens& token, Index stride) {
    const Index group = heads_.group;
    const auto query = [&](Index q_head) { return token.q().data + q_head * heads_.dim; };
    const auto logits = [&](Index q_head) { return rows_.data() + q_head * stride; };
    for (Index h = 0; h < heads_.kv; ++h) {
      const auto head = cache.mutable_head(0, h);
      for (Index q_head = h * group; q_head < (h + 1) * group; ++q_head) {
        key_products(head, 0, head.length(), query(q_head), head.shape().scale, logits(q_head));
      }
    }
    const auto observe = [&](Index h, int) {
      const auto head = cache.mutable_head(0, h);
      const Observation row{.visible = head.length(),
                            .first = true,
                            .logits = logits(h * group),
                            .logit_stride = stride,
                            .lse = lse_.data() + h * group,
                            .query = query(h * group)};
      SerialTeam team;
      cache.policy().observe(team, head, row);
    };
    return seconds_of([&] { executor_.run(heads_.kv, observe); });
  }

  Heads heads_;
  Executor executor_;
  std::vector<float> out_, lse_, rows_;
};

}  // namespace tersekv::bench
