// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory_resource>
#include <type_traits>
#include <utility>
#include <vector>

#include "tersekv/attention.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// What scratch memory depends on, beside the entries of a head.
struct WorkspaceForm {
  Index page_size = 0;
  Shape shape;
  Observes observes = Observes::nothing;
  bool has_bytes = false;    ///< keys or values are of a scaled codec
  bool has_pairs = false;    ///< keys are BFloat16: the same bytes on every machine
  bool has_weights = false;  ///< the policy's entries do

  template <class PolicyType, class KeyCodec, class ValueCodec>
  static WorkspaceForm of(Index page_size, const Shape& shape) {
    return {page_size,
            shape,
            PolicyType::observes,
            Codec<KeyCodec>::scaled || Codec<ValueCodec>::scaled,
            std::is_same_v<KeyCodec, BFloat16>,
            PolicyType::uses_weights};
  }
  Index whole_pages(Index entries) const {
    return (entries + page_size - 1) / page_size * page_size;
  }
};

/// Cuts a block of four-byte numbers into buffers; without a block, only counts.
struct Cutter {
  float* block = nullptr;
  Index used = 0;
  float* operator()(Index n, bool wanted = true) {
    if (!wanted) return nullptr;
    float* part = block == nullptr ? nullptr : block + used;
    used += padded_dim(n);  // no two buffers share a cache line
    return part;
  }
};

/// Of one worker, whatever head it works on.
struct WorkerBuffers {
  AttentionBuffers attention;
  Scratch scratch;
  float* query = nullptr;  ///< [tokens_at_once, group_size, head_dim]
  float* out = nullptr;    ///< [tokens_at_once, group_size, head_dim]
  float* lse = nullptr;    ///< [tokens_at_once, group_size]

  void cut(Cutter& take, Index entries, const WorkspaceForm& form) {
    const Index group = form.shape.group_size, dim = form.shape.head_dim;
    const Index rows = tokens_at_once(group) * group;
    attention.tile = take(std::max(rows * block_entries(form.page_size), group * kSection));
    attention.sums = take(2 * AttentionSums::floats(rows, padded_dim(dim)));
    attention.softmax = take(RunningSoftmax::floats(rows));
    attention.weights = take(2 * kSection, form.has_weights);
    attention.pairs = take(rows * dim / 2, form.has_pairs);
    attention.byte_queries = take(rows * padded_dim(dim), form.has_bytes);
    attention.byte_units = take(rows * ByteRows::kUnits, form.has_bytes);
    attention.share_units = take(rows, form.has_bytes);
    query = take(rows * dim);
    out = take(rows * dim);
    lse = take(rows);
    scratch.floats = take(entries);
    scratch.vector = take(dim);
    scratch.slots = reinterpret_cast<std::int32_t*>(take(Scratch::kSlotLists * entries));
  }
};

/// Of a head while it is worked on: by one worker, or by several that share it.
struct HeadBuffers {
  SharedBuffers shared;
  float* attention = nullptr;   ///< [entries]
  float* raw_logits = nullptr;  ///< [group_size, entries] or null

  void cut(Cutter& take, Index entries, const WorkspaceForm& form, bool in_sections) {
    const Index group = form.shape.group_size;
    const Index sums = AttentionSums::floats(group, padded_dim(form.shape.head_dim));
    shared.stride = entries + kApart;
    shared.kept = take(group * sections_of(entries) * kSection);
    shared.powers = take(group * (entries / block_entries(form.page_size)));
    shared.sections = take(sections_of(entries) * sums, in_sections);
    attention = take(entries);
    raw_logits = take(group * shared.stride, form.observes == Observes::logits);
  }

  /// Before workers share the head: how many will.
  void expect(Index workers) { pending_ = workers; }
  /// Whether the worker that calls is the last to be done; it then sees all that the others did.
  bool is_last() {
    return std::atomic_ref<Index>(pending_).fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  /// Rows of logits lie a cache line off a power of two apart: the nearest cache has few places for
  /// lines that are one apart.
  static constexpr Index kApart = 16;

  alignas(std::atomic_ref<Index>::required_alignment) Index pending_ = 0;
};

/// What buffers are cut from: none of their vectors lies in two cache lines.
struct alignas(64) CacheLine {
  float numbers[std::size_t{simd::kMostLanes}];
};

/// Buffers for heads of at most some number of entries, with the memory that they are cut from.
template <class Buffers>
class Space {
 public:
  explicit Space(std::pmr::memory_resource* resource) : block_(resource) {}

  Index entries() const { return entries_; }
  Index bytes() const { return static_cast<Index>(block_.capacity() * sizeof(CacheLine)); }
  Buffers& buffers() { return buffers_; }

  /// Cut anew for heads of at most `entries` entries, whole pages; `more` goes to Buffers::cut.
  /// Throws std::bad_alloc, and is then as before.
  template <class... More>
  void resize(Index entries, const WorkspaceForm& form, More... more) {
    Cutter count, take;
    Buffers buffers;
    buffers.cut(count, entries, form, more...);
    std::pmr::vector<CacheLine> block(static_cast<std::size_t>(count.used / simd::kMostLanes),
                                      block_.get_allocator());
    take.block = reinterpret_cast<float*>(block.data());
    buffers.cut(take, entries, form, more...);
    block_.swap(block);  // of the same resource
    buffers_ = buffers;
    entries_ = entries;
  }

 private:
  std::pmr::vector<CacheLine> block_;
  Buffers buffers_;
  Index entries_ = 0;
};

/// What one worker uses for one head.
struct Spaces {
  WorkerBuffers& worker;
  HeadBuffers& head;

  AttentionBuffers attention() const {
    AttentionBuffers buffers = worker.attention;
    buffers.shared = head.shared;
    return buffers;
  }
};

/// The scratch memory of an executor's workers, and of `most_shared` heads that they share.
class Workspaces {
 public:
  Workspaces(Index workers, Index most_shared, const WorkspaceForm& form,
             std::pmr::memory_resource* resource)
      : form_(form), workers_(resource), heads_(resource) {
    workers_.reserve(static_cast<std::size_t>(workers));
    heads_.reserve(static_cast<std::size_t>(workers + most_shared));
    for (Index w = 0; w < workers; ++w) workers_.emplace_back(resource);
    for (Index h = 0; h < workers + most_shared; ++h) heads_.emplace_back(resource);
  }

  /// For a head that worker `worker` alone works on.
  Spaces of(int worker) {
    const auto w = static_cast<std::size_t>(worker);
    return {workers_[w].buffers(), heads_[w].buffers()};
  }
  /// For shared head number `shared`.
  Spaces of(int worker, Index shared) {
    return {workers_[static_cast<std::size_t>(worker)].buffers(), shared_head(shared)};
  }
  HeadBuffers& shared_head(Index shared) {
    return heads_[workers_.size() + static_cast<std::size_t>(shared)].buffers();
  }

  /// Room for heads of up to `entries` entries. Grows by half at least, so that a head which grows
  /// by one entry a step seldom allocates.
  void reserve(Index entries) {
    resize([&](Index before) {
      return entries <= before ? before : std::max(entries, before + before / 2);
    });
  }
  /// No more room than for heads of up to `entries` entries. Where memory for one of the smaller
  /// blocks is refused, those not yet replaced are as they were.
  void shrink(Index entries) {
    resize([&](Index) { return entries; });
  }

  Index scratch_bytes() const {
    Index bytes = 0;
    for (const auto& space : workers_) bytes += space.bytes();
    for (const auto& space : heads_) bytes += space.bytes();
    return bytes;
  }
  Index bookkeeping_bytes() const {
    return static_cast<Index>(workers_.capacity() * sizeof(Space<WorkerBuffers>) +
                              heads_.capacity() * sizeof(Space<HeadBuffers>));
  }

 private:
  template <class F>
  void resize(F&& wanted) {
    const auto fit = [&](auto& space, auto... more) {
      const Index entries = form_.whole_pages(wanted(space.entries()));
      if (entries != space.entries()) space.resize(entries, form_, more...);
    };
    for (auto& space : workers_) fit(space);
    for (std::size_t h = 0; h < heads_.size(); ++h) fit(heads_[h], h >= workers_.size());
  }

  WorkspaceForm form_;
  std::pmr::vector<Space<WorkerBuffers>> workers_;
  std::pmr::vector<Space<HeadBuffers>> heads_;
};

}  // namespace tersekv::detail
