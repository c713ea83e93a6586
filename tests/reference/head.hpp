// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "choice.hpp"

namespace reference {

constexpr Integer kAuto = -1;
constexpr Integer kNever = -1;
constexpr Integer kNoTarget = -1;

/// One live entry of a KV head. A policy uses the statistics it needs and ignores the others.
struct Entry {
  Vector key, value;
  double weight = 1;
  Integer position = 0;
  double score = 0;       // what the policy accumulates or compares
  Integer queries = 0;    // how many observed queries have seen the entry
  bool residual = false;  // ZSMerge: a slot that absorbs other entries
  bool blended = false;   // ZSMerge: different keys were averaged in this one
  Vector log_average;     // KeepKV: ln S per query head
};

/// What the engine hands over for one token: a query per head of the group, a key, a value, and for
/// KVzap the surrogate's score.
struct Token {
  std::vector<Vector> queries;
  Vector key, value;
  double score = 0;
};

/// One query row: the token's attention, per query head, to the entries with a lower or equal place
/// in `Cache::entries` (the rest came after the token).
struct Row {
  Integer position = 0;
  std::vector<Vector> queries;
  std::vector<Attention> heads;
  Vector group;  // reduced over the query heads
};

/// A token that left: merged into `target`, or evicted (`kNoTarget`), or made a residual slot.
struct Event {
  Integer tokens_seen = 0;
  Integer victim = 0;
  Integer target = kNoTarget;
  bool opened_slot = false;
};

/// What a policy may look at and change. Entries are always in order of position, so that the first
/// of several equal candidates is the one with the lower position.
struct Cache {
  /// What the storage makes of a key or value that was worked out; empty: nothing.
  std::function<void(Vector&, Margin&)> store;
  std::vector<Entry> entries;
  Integer tokens_seen = 0;
  double scale = 0;
  Margin margin;
  std::vector<Event> events;

  bool among_latest(const Entry& entry, Integer count) const {
    return entry.position >= tokens_seen - count;
  }

  Integer size() const { return std::ssize(entries); }

  void stored(Vector& key_or_value) {
    if (store) store(key_or_value, margin);
  }

  void evict(std::size_t index) {
    events.push_back({tokens_seen, entries[index].position});
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(index));
  }

  /// Evicts several entries, named by ascending indices.
  void evict(const std::vector<std::size_t>& indices) {
    for (std::size_t i = 0; i < indices.size(); ++i) evict(indices[i] - i);
  }
};

/// Evicts the lowest `Entry::score` among the entries that are not `spared` until `budget` are
/// left.
template <class Spared>
void evict_lowest(Cache& cache, Integer budget, Spared spared) {
  if (cache.size() <= budget) return;
  Vector scores;
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < cache.entries.size(); ++i) {
    if (spared(cache.entries[i])) continue;
    scores.push_back(cache.entries[i].score);
    candidates.push_back(i);
  }
  std::vector<std::size_t> victims;
  for (std::size_t chosen : choose_lowest(scores, cache.size() - budget, cache.margin))
    victims.push_back(candidates[chosen]);
  cache.evict(victims);
}

class Policy {
 public:
  virtual ~Policy() = default;
  /// The exponent of the weights in attention; 0 is plain softmax.
  virtual double alpha() const { return 0; }
  /// All rows of a chunk, in order; the policy takes those it looks at.
  virtual void observe(Cache&, const std::vector<Row>&) {}
  /// `new_tokens`: tokens appended since the last call.
  virtual void compress(Cache&, Integer new_tokens) = 0;
};

/// Keeps everything.
class Full : public Policy {
 public:
  void compress(Cache&, Integer) override {}
};

struct HeadOptions {
  double scale = 0;  // 0: 1/sqrt(d)
  GroupReduce group_reduce = GroupReduce::sum;
  std::function<void(Vector&, Margin&)> store = {};  // see Cache
};

/// What attention returned for one token: per query head an output and a natural-log lse.
struct TokenOutput {
  std::vector<Vector> outputs;
  Vector lse;
};

/// One KV head with its group of query heads, replayed token by token or in chunks.
class Head {
 public:
  Head(std::shared_ptr<Policy> policy, HeadOptions options = {})
      : policy_(std::move(policy)), options_(std::move(options)) {
    cache_.store = options_.store;
  }

  /// Append, attend causally, observe, compress. `compress_every`: 0 compresses once, after the
  /// chunk; c treats every c tokens as a chunk of their own; kNever leaves compression out.
  std::vector<TokenOutput> extend(const std::vector<Token>& chunk, Integer compress_every = 0) {
    std::vector<TokenOutput> outputs;
    const std::size_t step =
        compress_every > 0 ? static_cast<std::size_t>(compress_every) : chunk.size();
    for (std::size_t begin = 0; begin < chunk.size(); begin += step) {
      const std::size_t end = std::min(begin + step, chunk.size());
      append(chunk, begin, end);
      attend(chunk, begin, end);
      policy_->observe(cache_, rows_);
      for (const Row& row : rows_) outputs.push_back(output_of(row));
      largest_ = std::max(largest_, cache_.size());
      if (compress_every != kNever) compress();
    }
    outputs_.insert(outputs_.end(), outputs.begin(), outputs.end());
    return outputs;
  }

  void compress() {
    policy_->compress(cache_, new_tokens_);
    new_tokens_ = 0;
  }

  const std::vector<Entry>& entries() const { return cache_.entries; }
  const std::vector<Event>& events() const { return cache_.events; }
  const Margin& margin() const { return cache_.margin; }
  Integer tokens_seen() const { return cache_.tokens_seen; }
  /// The most entries held at any time, between attention and compression.
  Integer largest_size() const { return largest_; }
  /// The rows of the last chunk that was observed.
  const std::vector<Row>& last_rows() const { return rows_; }
  /// Everything attention returned so far, token by token.
  const std::vector<TokenOutput>& outputs() const { return outputs_; }

  std::vector<Integer> positions() const {
    std::vector<Integer> result;
    for (const Entry& entry : cache_.entries) result.push_back(entry.position);
    return result;
  }

  double total_weight() const {
    double total = 0;
    for (const Entry& entry : cache_.entries) total += entry.weight;
    return total;
  }

 private:
  void append(const std::vector<Token>& chunk, std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      Entry entry;
      entry.key = chunk[t].key;
      entry.value = chunk[t].value;
      entry.position = cache_.tokens_seen++;
      entry.score = chunk[t].score;
      cache_.entries.push_back(entry);
      ++new_tokens_;
    }
    if (cache_.scale == 0 && begin < end)
      cache_.scale = options_.scale != 0
                         ? options_.scale
                         : 1 / std::sqrt(static_cast<double>(chunk[begin].key.size()));
  }

  void attend(const std::vector<Token>& chunk, std::size_t begin, std::size_t end) {
    rows_.clear();
    for (std::size_t t = begin; t < end; ++t) {
      const std::size_t later = end - 1 - t;  // tokens of the chunk that this one must not see
      const std::size_t visible = cache_.entries.size() - later;
      Row row;
      row.position = cache_.entries[visible - 1].position;
      row.queries = chunk[t].queries;
      for (const Vector& query : row.queries)
        row.heads.push_back(
            reference::attend(query, cache_.entries, visible, policy_->alpha(), cache_.scale));
      row.group = reduce_group(row.heads, options_.group_reduce);
      rows_.push_back(row);
    }
  }

  static TokenOutput output_of(const Row& row) {
    TokenOutput result;
    for (const Attention& head : row.heads) {
      result.outputs.push_back(head.output);
      result.lse.push_back(head.lse);
    }
    return result;
  }

  std::shared_ptr<Policy> policy_;
  HeadOptions options_;
  Cache cache_;
  std::vector<Row> rows_;
  std::vector<TokenOutput> outputs_;
  Integer new_tokens_ = 0;
  Integer largest_ = 0;
};

/// `Head head = make_head<ZSMerge>({.budget = 12});`
template <class SomePolicy>
Head make_head(const typename SomePolicy::Options& options, HeadOptions head = {}) {
  return Head(std::make_shared<SomePolicy>(options), head);
}

/// The tokens of one KV head from contiguous arrays: q [tokens, kv_heads, group, d],
/// k and v [tokens, kv_heads, d], scores [tokens, kv_heads] or null.
template <class T>
std::vector<Token> make_tokens(const T* q, const T* k, const T* v, Integer tokens, Integer kv_heads,
                               Integer group, Integer d, Integer kv_head,
                               const T* scores = nullptr) {
  std::vector<Token> result;
  for (Integer t = 0; t < tokens; ++t) {
    const Integer row = t * kv_heads + kv_head;
    Token token;
    for (Integer g = 0; g < group; ++g)
      token.queries.emplace_back(q + (row * group + g) * d, q + (row * group + g + 1) * d);
    token.key.assign(k + row * d, k + (row + 1) * d);
    token.value.assign(v + row * d, v + (row + 1) * d);
    if (scores != nullptr) token.score = scores[row];
    result.push_back(token);
  }
  return result;
}

}  // namespace reference
