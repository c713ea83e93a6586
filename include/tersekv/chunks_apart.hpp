// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>

#include "tersekv/chunk.hpp"
#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/footprint.hpp"
#include "tersekv/slot_order.hpp"

namespace tersekv::detail {

/// The chunks of a batch, whatever their type, so that what looks at them is compiled once.
struct ChunkList {
  const void* chunks;
  Index count;
  Index (*sequence_of)(const void* chunks, Index chunk);
  CallFootprints (*footprints_of)(const void* chunks, Index chunk);

  template <class T>
  explicit ChunkList(std::span<const Chunk<T>> of)
      : chunks(of.data()),
        count(static_cast<Index>(of.size())),
        sequence_of(
            [](const void* all, Index c) { return static_cast<const Chunk<T>*>(all)[c].sequence; }),
        footprints_of([](const void* all, Index c) {
          return detail::footprints_of(static_cast<const Chunk<T>*>(all)[c]);
        }) {}
  Index sequence(Index c) const { return sequence_of(chunks, c); }
  CallFootprints footprints(Index c) const { return footprints_of(chunks, c); }
};

/// Chunks of one batch run at the same time: they are of different sequences, and none writes what
/// another reads or writes. O(n log n) for n chunks whose rows lie one after the other, O(n^2)
/// where they lie among each other; up to some 80 take no memory but the stack's.
[[gnu::cold]] inline void check_chunks_apart(const ChunkList& chunks) {
  if (chunks.count < 2) return;
  struct Reach {
    std::intptr_t first, last;
    Index chunk, view;
  };
  alignas(std::max_align_t) std::array<std::byte, 18432> stack;
  std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());
  // Neither vectors nor lists: these numbers live as long as the memory.
  const auto most = static_cast<std::size_t>(chunks.count) * CallFootprints().size();
  auto* reaches = static_cast<Reach*>(memory.allocate(most * sizeof(Reach), alignof(Reach)));
  auto* order = static_cast<std::int32_t*>(
      memory.allocate(most * sizeof(std::int32_t), alignof(std::int32_t)));
  const auto put_in_order = [&](Index count, SlotLess before) {
    for (Index i = 0; i < count; ++i) order[i] = static_cast<std::int32_t>(i);
    sort_slots(order, count, before);
  };

  put_in_order(chunks.count, SlotLess([&](std::int32_t a, std::int32_t b) {
                 return chunks.sequence(a) < chunks.sequence(b);
               }));
  for (Index i = 1; i < chunks.count; ++i) {
    const Index sequence = chunks.sequence(order[i]);
    if (sequence != chunks.sequence(order[i - 1])) continue;
    refuse({"chunks"}, {"different sequences"}, {"sequence ", sequence, " twice"});
  }

  // In order of address only those are compared that reach beyond where the next one begins.
  Index count = 0;
  for (Index c = 0; c < chunks.count; ++c) {
    const CallFootprints views = chunks.footprints(c);
    for (std::size_t v = 0; v < views.size(); ++v) {
      if (views[v].extents[0] == 0) continue;
      const auto [low, high] = views[v].range();
      reaches[count++] = {views[v].address_of(low), views[v].address_of(high), c,
                          static_cast<Index>(v)};
    }
  }
  put_in_order(count, SlotLess([&](std::int32_t a, std::int32_t b) {
                 return reaches[a].first < reaches[b].first;
               }));
  const auto view_of = [&](const Reach& reach) {
    return chunks.footprints(reach.chunk)[static_cast<std::size_t>(reach.view)];
  };
  for (Index i = 0; i < count; ++i) {
    const Reach& a = reaches[order[i]];
    const Footprint view = view_of(a);
    for (Index j = i + 1; j < count && reaches[order[j]].first < a.last; ++j) {
      const Reach& b = reaches[order[j]];
      const bool written = a.view < kWrittenFootprints || b.view < kWrittenFootprints;
      if (!written || a.chunk == b.chunk || !overlap(view, view_of(b))) continue;
      refuse({"chunks"}, {"an out and lse apart from the views of all others"},
             {"one that overlaps"});
    }
  }
}

}  // namespace tersekv::detail
