// SPDX-License-Identifier: Apache-2.0
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "tersekv: expected C++20 or later: compile with -std=c++20"
#endif

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

namespace tersekv {

/// Every count, extent, stride and position. 64 bits: a large cache passes 2^31 elements.
using Index = std::int64_t;

/// A parameter left to the method's own default.
inline constexpr Index kAuto = -1;
/// `ExtendOptions::compress_every`: the call compresses nothing.
inline constexpr Index kNever = -1;
/// A budget that never binds.
inline constexpr Index kUnlimited = std::numeric_limits<Index>::max();
/// Entries of a page, at most.
inline constexpr Index kMostPageSize = 4096;
/// Tokens of a sequence; positions are stored in 32 bits.
inline constexpr Index kMostTokens = std::numeric_limits<std::int32_t>::max();
/// Largest magnitude of an element of q, k or v. Products of two such numbers, summed over any
/// practical head_dim, still fit a float, so attention cannot produce an infinity.
inline constexpr float kMaxMagnitude = 1e15f;

/// How the attention of the query heads that share a KV head becomes one number per entry.
enum class GroupReduce { sum, mean, max };

/// Entries a KV head may hold: unlimited (the default), one number for all heads, or one per head.
class Budget {
 public:
  Budget() = default;
  Budget(Index entries) : per_head_{entries} {}  // NOLINT: implicit by design
  Budget(std::initializer_list<Index> per_head) : per_head_(per_head) {}
  explicit Budget(std::span<const Index> per_head) : per_head_(per_head.begin(), per_head.end()) {}

  /// Numbers given: 0 (unlimited), 1 (shared), or one per KV head.
  Index size() const { return static_cast<Index>(per_head_.size()); }
  Index of(Index kv_head) const {
    if (per_head_.empty()) return kUnlimited;
    return per_head_[per_head_.size() == 1 ? 0 : static_cast<std::size_t>(kv_head)];
  }

 private:
  std::vector<Index> per_head_;
};

/// One attention layer's cache. Query head = kv_head * (num_q_heads / num_kv_heads) + g.
struct CacheConfig {
  Index num_sequences = 1;
  Index num_q_heads = 0;  ///< a multiple of num_kv_heads
  Index num_kv_heads = 0;
  Index head_dim = 0;
  /// Entries per KV head, for policies that have one. A decode step works on one more: a budget one
  /// below whole pages (511) takes a page a head and some time less than one of whole pages.
  Budget budget = {};
  Index layer = 0;     ///< for policies that leave the first layers uncompressed
  float scale = 0.0f;  ///< of the logits; 0 means 1 / sqrt(head_dim)
  GroupReduce group_reduce = GroupReduce::sum;
  Index page_size = 64;  ///< entries per page: a power of two from 16 to 4096
};

/// What a policy may ask about the head it works on, the same for every head of a cache.
struct Shape {
  Index group_size = 1;
  Index head_dim = 0;
  Index layer = 0;
  float scale = 1.0f;
};

/// What happened to the entries that are no longer there.
struct Counts {
  Index evictions = 0;  ///< left, content lost
  Index merges = 0;     ///< left, content folded into another entry
};

/// Bytes that a cache has from its memory resource, exactly; `total()` is the sum.
struct MemoryUsage {
  Index keys = 0, values = 0, weights = 0, positions = 0, statistics = 0;  ///< of live entries
  Index slack = 0;        ///< unused slots and padding of held pages, idle pages of an own pool
  Index bookkeeping = 0;  ///< page tables, head states and registers
  Index workspace = 0;    ///< scratch, of workers and of heads that several share, of an own pool
  Index total() const {
    return keys + values + weights + positions + statistics + slack + bookkeeping + workspace;
  }
  MemoryUsage& operator+=(const MemoryUsage& other) {
    keys += other.keys;
    values += other.values;
    weights += other.weights;
    positions += other.positions;
    statistics += other.statistics;
    slack += other.slack;
    bookkeeping += other.bookkeeping;
    workspace += other.workspace;
    return *this;
  }
};

/// A live entry, copied out.
struct Entry {
  Index position = 0;
  float weight = 1.0f;
  float score = 0.0f;  ///< the policy's, as of its last compression where it is only then worked
                       ///< out (SnapKV); higher = keep
  std::vector<float> key, value;
};

}  // namespace tersekv
