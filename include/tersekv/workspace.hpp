// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory_resource>
#include <vector>

#include "tersekv/attention.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// What the buffers of a worker depend on, beside the entries of a head.
struct WorkspaceForm {
  Index page_size = 0;
  Shape shape;
  Observes observes = Observes::nothing;
  bool has_weights = false;
  bool has_bytes = false;  ///< keys or values are of a scaled codec

  template <class PolicyType, class KeyCodec, class ValueCodec>
  static WorkspaceForm of(Index page_size, const Shape& shape) {
    return {page_size, shape, PolicyType::observes, PolicyType::uses_weights,
            Codec<KeyCodec>::scaled || Codec<ValueCodec>::scaled};
  }
  Index whole_pages(Index entries) const {
    return (entries + page_size - 1) / page_size * page_size;
  }
};

/// The scratch memory of one worker: one block of four-byte numbers, cut into the buffers a head of
/// at most `entries` entries needs.
class Workspace {
 public:
  explicit Workspace(std::pmr::memory_resource* resource) : block_(resource) {}

  /// Whether there is room for heads of `entries` entries already.
  bool fits(Index entries) const { return entries <= entries_; }

  /// Cut anew for heads of at most `entries` entries. Throws std::bad_alloc, and is
  /// then as before.
  void resize(Index entries, const WorkspaceForm& form) {
    Workspace other(block_.get_allocator().resource());
    other.cut(nullptr, form.whole_pages(entries), form);
    other.block_.resize(static_cast<std::size_t>(other.used_));
    other.cut(other.block_.data(), form.whole_pages(entries), form);
    *this = std::move(other);  // same resource: the block moves, its address stays
  }

  Index entries() const { return entries_; }
  Index bytes() const { return static_cast<Index>(block_.capacity() * sizeof(float)); }

  const AttentionBuffers& attention_buffers() const { return attention_buffers_; }
  const Scratch& scratch() const { return scratch_; }
  float* query() const { return query_; }          ///< [tokens_at_once, group_size, head_dim]
  float* out() const { return out_; }              ///< [tokens_at_once, group_size, head_dim]
  float* lse() const { return lse_; }              ///< [tokens_at_once, group_size]
  float* attention() const { return attention_; }  ///< [entries]
  float* raw_logits() const { return raw_; }       ///< [group_size, entries] or null

 private:
  void cut(float* block, Index entries, const WorkspaceForm& form) {
    entries_ = entries;
    used_ = 0;
    const auto take = [&](Index n, bool wanted = true) -> float* {
      if (!wanted) return nullptr;
      float* part = block == nullptr ? nullptr : block + used_;
      used_ += (n + 15) / 16 * 16;  // no two buffers share a cache line's worth
      return part;
    };
    const Index group = form.shape.group_size, dim = form.shape.head_dim;
    const Index rows = tokens_at_once(group) * group, tile = tile_entries(form.page_size);
    AttentionBuffers& a = attention_buffers_;
    a.shared.stride = entries;
    a.shared.kept = take(group * entries);
    a.shared.powers = take(group * (entries / tile));
    a.tile = take(rows * tile);
    a.bias = take(tile, form.has_weights);
    a.sums = take(2 * AttentionSums::floats(rows, padded_dim(dim)));
    a.softmax = take(RunningSoftmax::floats(rows));
    a.byte_queries = take(rows * padded_dim(dim), form.has_bytes);
    a.byte_units = take(rows * ByteRows::kUnits, form.has_bytes);
    a.share_units = take(rows, form.has_bytes);
    query_ = take(rows * dim);
    out_ = take(rows * dim);
    lse_ = take(rows);
    attention_ = take(entries);
    raw_ = take(group * entries, form.observes == Observes::logits);
    scratch_.floats = take(entries);
    scratch_.vector = take(dim);
    scratch_.slots = reinterpret_cast<std::int32_t*>(take(Scratch::kSlotLists * entries));
  }

  std::pmr::vector<float> block_;
  Index entries_ = 0, used_ = 0;
  AttentionBuffers attention_buffers_;
  float *query_ = nullptr, *out_ = nullptr, *lse_ = nullptr, *attention_ = nullptr, *raw_ = nullptr;
  Scratch scratch_;
};

/// The workspaces of an executor's workers.
class Workspaces {
 public:
  Workspaces(int workers, const WorkspaceForm& form, std::pmr::memory_resource* resource)
      : form_(form), each_(resource) {
    each_.reserve(static_cast<std::size_t>(workers));
    for (int w = 0; w < workers; ++w) each_.emplace_back(resource);
  }

  Workspace& of(int worker) { return each_[static_cast<std::size_t>(worker)]; }

  /// Room for heads of up to `entries` entries. Grows by half at least, so that a head which grows
  /// by one entry a step seldom allocates.
  void reserve(Index entries) {
    for (Workspace& space : each_) {
      if (space.fits(entries)) continue;
      const Index wanted = std::max(entries, space.entries() + space.entries() / 2);
      space.resize(wanted, form_);
    }
  }
  /// No more room than for heads of up to `entries` entries. Where memory for one of the smaller
  /// workspaces is refused, those not yet replaced are as they were.
  void shrink(Index entries) {
    for (Workspace& space : each_) space.resize(entries, form_);
  }

  Index scratch_bytes() const {
    Index bytes = 0;
    for (const Workspace& space : each_) bytes += space.bytes();
    return bytes;
  }
  Index bookkeeping_bytes() const {
    return static_cast<Index>(each_.capacity() * sizeof(Workspace));
  }

 private:
  WorkspaceForm form_;
  std::pmr::vector<Workspace> each_;
};

}  // namespace tersekv::detail
