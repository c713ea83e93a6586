// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <type_traits>
#include <utility>

#include "tersekv/attention.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/list.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/scratch_blocks.hpp"

namespace tersekv::detail {

/// What scratch memory depends on, beside the entries of a head.
struct WorkspaceForm {
  Index page_size = 0;
  Shape shape;
  Observes observes = Observes::nothing;
  bool has_bytes = false;    ///< keys or values are of a scaled codec
  bool has_pairs = false;    ///< keys are BFloat16: the same bytes on every machine
  bool has_weights = false;  ///< the policy's entries do
  /// Room for TiledAttention: of so many rows, a head_dim and a block's entries; null if not there.
  Index (*tiled_room)(Index, Index, Index) = nullptr;
  bool single_tiled = false;  ///< it works on single tokens

  template <class PolicyType, class KeyCodec, class ValueCodec>
  static WorkspaceForm of(Index page_size, const Shape& shape) {
    using Tiled = TiledAttention<KeyCodec, ValueCodec>;
    const Index dim = shape.head_dim, block = block_entries(page_size);
    return {page_size,
            shape,
            PolicyType::observes,
            Codec<KeyCodec>::scaled || Codec<ValueCodec>::scaled,
            std::is_same_v<KeyCodec, BFloat16>,
            PolicyType::uses_weights,
            Tiled::fits(dim, block) ? Tiled::room : nullptr,
            Tiled::pays(shape.group_size, dim, block)};
  }
  Index whole_pages(Index entries) const {
    return (entries + page_size - 1) / page_size * page_size;
  }
};

/// Cuts a block of four-byte numbers into buffers, each of whole cache lines; without a block, only
/// counts.
struct Cutter {
  float* block = nullptr;
  Index used = 0;
  float* operator()(Index n, bool wanted = true) {
    if (!wanted) return nullptr;
    float* part = block == nullptr ? nullptr : block + used;
    used += padded_dim(n);
    return part;
  }
};

/// What heads may need room for.
struct Extent {
  Index entries = 0;
  Index tokens = 1;  ///< that come together
};

/// Of one worker, whatever head it works on.
struct WorkerBuffers {
  AttentionBuffers attention;
  Scratch scratch;
  Index tokens = 0;        ///< worked on at a time
  float* query = nullptr;  ///< [tokens, group_size, head_dim]
  float* out = nullptr;    ///< [tokens, group_size, head_dim]
  float* lse = nullptr;    ///< [tokens, group_size]

  [[gnu::cold]] void cut(Cutter& take, const Extent& room, const WorkspaceForm& form) {
    const Index group = form.shape.group_size, dim = form.shape.head_dim;
    tokens = tokens_at_once(group, room.tokens);
    const Index rows = tokens * group, block = block_entries(form.page_size);
    const bool tiled =
        form.tiled_room != nullptr && (form.single_tiled || is_tiled(room.tokens, group));
    attention.tile =
        take(std::max((tiled ? whole_tile_rows(rows) : rows) * block, group * kSection));
    attention.sums = take(2 * AttentionSums::floats(rows, padded_dim(dim)));
    attention.softmax = take(RunningSoftmax::floats(rows));
    attention.weights = take(2 * kSection, form.has_weights);
    attention.pairs = take(rows * dim / 2, form.has_pairs);
    attention.byte_queries = take(rows * padded_dim(dim), form.has_bytes);
    attention.byte_units = take(rows * ByteRows::kUnits, form.has_bytes);
    attention.share_units = take(rows, form.has_bytes);
    attention.tiled = take(tiled ? form.tiled_room(rows, dim, block) : 0, tiled);
    query = take(rows * dim);
    out = take(rows * dim);
    lse = take(rows);
    scratch.floats = take(room.entries);
    scratch.vectors = take(Scratch::kRows * dim);
    scratch.slots = reinterpret_cast<std::int32_t*>(take(Scratch::kSlotLists * room.entries));
  }
};

/// Of a head while it is worked on: by one worker, or by several that share it.
struct HeadBuffers {
  SharedBuffers shared;
  float* attention = nullptr;   ///< [entries]
  float* raw_logits = nullptr;  ///< [group_size, entries] or null

  [[gnu::cold]] void cut(Cutter& take, const Extent& room, const WorkspaceForm& form,
                         bool in_sections) {
    const Index group = form.shape.group_size, entries = room.entries;
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

/// The scratch memory of an executor's workers, and of `most_shared` heads that they share, cut out
/// of blocks that other caches may use between calls.
class Workspaces {
 public:
  Workspaces(Index workers, Index most_shared, const WorkspaceForm& form,
             std::pmr::memory_resource* resource)
      : form_(form), workers_(resource, workers), heads_(resource, workers + most_shared) {}

  /// Before all others: the blocks.
  void use(std::shared_ptr<ScratchBlocks> blocks) noexcept { blocks_ = std::move(blocks); }

  /// Before the first of these in a call: buffers where the blocks are now.
  void find() {
    if (generation_ != blocks_->generation()) cut();
  }
  /// For a head that worker `worker` alone works on.
  Spaces of(int worker) { return {workers_[worker], heads_[worker]}; }
  /// For shared head number `shared`.
  Spaces of(int worker, Index shared) { return {workers_[worker], shared_head(shared)}; }
  HeadBuffers& shared_head(Index shared) { return heads_[workers_.size() + shared]; }

  /// Room for heads of up to `wanted.entries` entries, to which as many tokens come together. Grows
  /// by half at least, so that a head which grows by one entry a step seldom allocates. Throws
  /// std::bad_alloc; there is then as much as before, or more.
  void reserve(const Extent& wanted) {
    Extent room{room_.entries, std::max(room_.tokens, at_once(wanted.tokens))};
    if (wanted.entries > room.entries) {
      room.entries = form_.whole_pages(std::max(wanted.entries, room.entries + room.entries / 2));
    } else if (room.tokens == room_.tokens) {
      return;
    }
    for_each_block(room, [&](Index i, Index floats) { blocks_->reserve(i, floats); });
    room_ = room;
    cut();
  }
  /// No more room than for heads of up to `entries` entries, to which single tokens come, where no
  /// other cache uses the blocks. Throws std::bad_alloc where memory for a smaller block is
  /// refused; some are then large still.
  void shrink(Index entries) {
    if (blocks_.use_count() > kOwners) return;
    room_ = {std::min(room_.entries, form_.whole_pages(entries)), at_once(1)};
    Index blocks = 0;
    for_each_block(room_, [&](Index i, Index floats) {
      blocks_->shrink(i, floats);
      blocks = i + 1;
    });
    blocks_->keep(blocks);
    cut();
  }

  Index bookkeeping_bytes() const { return workers_.bytes() + heads_.bytes(); }

 private:
  static constexpr long kOwners = 2;  // of blocks that one cache uses: it and the pool

  /// f(buffers, what else their `cut` is told) for those of every block.
  template <class F>
  void for_each_buffers(F&& f) {
    for (WorkerBuffers& buffers : workers_) f(buffers);
    for (Index h = 0; h < heads_.size(); ++h) f(heads_[h], h >= workers_.size());
  }
  Index at_once(Index tokens) const { return tokens_at_once(form_.shape.group_size, tokens); }

  /// f(block, floats) for what so much room needs.
  template <class F>
  void for_each_block(const Extent& room, F&& f) {
    Index block = 0;
    for_each_buffers([&](const auto& buffers, auto... more) {
      auto counted = buffers;
      Cutter count;
      counted.cut(count, room, form_, more...);
      f(block++, room.entries == 0 ? 0 : count.used);
    });
  }
  [[gnu::cold]] void cut() {
    generation_ = blocks_->generation();
    Index block = 0;
    for_each_buffers([&](auto& buffers, auto... more) {
      Cutter take{room_.entries == 0 ? nullptr : blocks_->block(block)};
      ++block;
      buffers.cut(take, room_, form_, more...);
    });
  }

  WorkspaceForm form_;
  std::shared_ptr<ScratchBlocks> blocks_;
  Extent room_;
  Index generation_ = 0;
  List<WorkerBuffers> workers_;
  List<HeadBuffers> heads_;
};

}  // namespace tersekv::detail
