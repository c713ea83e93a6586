// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory_resource>
#include <vector>

#include "tersekv/attention.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// The scratch memory of one worker: one block of four-byte numbers, cut into the buffers a head of
/// at most `entries` entries needs. Grows, never shrinks.
class Workspace {
 public:
  explicit Workspace(std::pmr::memory_resource* resource) : block_(resource) {}

  /// Whether there is room for heads of `entries` entries already.
  bool fits(Index entries) const { return entries <= entries_; }

  /// Throws std::bad_alloc, and is then as before.
  void grow(Index entries, const Shape& shape, Observes observes, bool has_weights) {
    Workspace bigger(block_.get_allocator().resource());
    bigger.cut(nullptr, entries, shape, observes, has_weights);
    bigger.block_.resize(static_cast<std::size_t>(bigger.used_));
    bigger.cut(bigger.block_.data(), entries, shape, observes, has_weights);
    *this = std::move(bigger);  // same resource: the block moves, its address stays
  }

  Index entries() const { return entries_; }
  Index bytes() const { return static_cast<Index>(block_.capacity() * sizeof(float)); }

  AttentionBuffers attention_buffers() const { return {logits_, bias_, sums_, entries_}; }
  const Scratch& scratch() const { return scratch_; }
  float* query() const { return query_; }          ///< [group_size, head_dim]
  float* out() const { return out_; }              ///< [group_size, head_dim]
  float* lse() const { return lse_; }              ///< [group_size]
  float* attention() const { return attention_; }  ///< [entries]
  float* raw_logits() const { return raw_; }       ///< [group_size, entries] or null

 private:
  void cut(float* block, Index entries, const Shape& shape, Observes observes, bool has_weights) {
    entries_ = entries;
    used_ = 0;
    const auto take = [&](Index n, bool wanted = true) -> float* {
      if (!wanted) return nullptr;
      float* part = block == nullptr ? nullptr : block + used_;
      used_ += (n + 15) / 16 * 16;  // no two buffers share a cache line's worth
      return part;
    };
    const Index group = shape.group_size, dim = shape.head_dim;
    logits_ = take(group * entries);
    bias_ = take(entries, has_weights);
    sums_ = take(2 * group * padded_dim(dim));
    query_ = take(group * dim);
    out_ = take(group * dim);
    lse_ = take(group);
    attention_ = take(entries);
    raw_ = take(group * entries, observes == Observes::logits);
    scratch_.floats = take(entries);
    scratch_.vector = take(dim);
    scratch_.slots = reinterpret_cast<std::int32_t*>(take(Scratch::kSlotLists * entries));
  }

  std::pmr::vector<float> block_;
  Index entries_ = 0, used_ = 0;
  float *logits_ = nullptr, *bias_ = nullptr, *sums_ = nullptr, *query_ = nullptr, *out_ = nullptr,
        *lse_ = nullptr, *attention_ = nullptr, *raw_ = nullptr;
  Scratch scratch_;
};

}  // namespace tersekv::detail
