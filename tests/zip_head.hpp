// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "bare_head.hpp"
#include "tersekv/policies/keepkv.hpp"

namespace support {

/// A KV head of one query head whose entries are ZIP-merged by hand: scores are predicted from the
/// latest query alone, so that they are the current ones.
class ZipHead {
 public:
  using Index = tersekv::Index;

  ZipHead(tersekv::KeyRule rule, Index head_dim, float scale, Index capacity = 64)
      : policy_(tersekv::make_keepkv({.key_rule = rule})),
        shape_{.group_size = 1, .head_dim = head_dim, .scale = scale},
        bare_(policy_, shape_, tersekv::kUnlimited, capacity, 16) {}

  tersekv::Head<float, float> head() { return bare_.head(); }

  void push(const float* key, const float* value, float votes) {
    const Index slot = head().length();
    bare_.push(key, value, votes);
    policy_.append(team_, head(), slot, 1, nullptr);
  }

  /// Attention with ln votes: the output; lse in `lse()`.
  std::vector<float> attend(const float* query) {
    bare_.attend(query, head().length());
    return {bare_.output().begin(), bare_.output().end()};
  }
  float lse() const { return bare_.lse()[0]; }

  /// Predicted scores become those of this query, and nothing else.
  void predict(const float* query) {
    attend(query);
    predict(query, bare_.row().logits);
  }
  /// As above, with given log-scores, one per slot.
  void predict(const float* query, const float* log_scores) {
    for (Index i = 0; i < head().length(); ++i) head().int_stat(1, i) = 0;  // no query seen yet
    const float lse = 0;
    tersekv::Observation row;
    row.visible = head().length();
    row.first = true;
    row.logits = log_scores;
    row.logit_stride = head().length();
    row.lse = &lse;
    row.query = query;
    policy_.observe(team_, head(), row);
  }
  float predicted(Index slot) { return policy_.scorer().log_score(head(), slot, 0); }

  /// Merges the entry in slot `victim` into that in slot `target`. The last slot's entry takes the
  /// victim's place.
  void merge(Index victim, Index target) {
    policy_.merger().merge(team_, head(), policy_.scorer(), victim, target,
                           policy_.scorer().statistics(shape_));
    std::int32_t* victims = head().scratch().slots;
    victims[0] = static_cast<std::int32_t>(victim);
    remove_entries(team_, head(), victims, 1);
  }

  std::vector<float> key(Index slot) {
    std::vector<float> result;
    for (Index j = 0; j < shape_.head_dim; ++j) result.push_back(head().key(slot, j));
    return result;
  }
  std::vector<float> value(Index slot) {
    std::vector<float> result;
    for (Index j = 0; j < shape_.head_dim; ++j) result.push_back(head().value(slot, j));
    return result;
  }

 private:
  tersekv::KeepKV policy_;
  tersekv::Shape shape_;
  BareHead<tersekv::KeepKV> bare_;
  tersekv::SerialTeam team_;
};

}  // namespace support
