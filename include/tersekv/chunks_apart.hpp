// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "tersekv/checks.hpp"
#include "tersekv/chunk.hpp"
#include "tersekv/slot_order.hpp"

namespace tersekv::detail {

/// What a chunk touches, what it writes first.
template <class T>
std::array<Footprint, 6> footprints_of(const Chunk<T>& chunk) {
  return {chunk.out, lse_footprint(chunk.lse, chunk.q.tokens, chunk.q.heads),
          chunk.q,   chunk.k,
          chunk.v,   scores_view(chunk.token_scores, chunk.k.tokens, chunk.k.heads)};
}
inline constexpr int kWrittenFootprints = 2;

/// Chunks of one batch run at the same time: they are of different sequences, and none writes what
/// another reads or writes. O(n log n) for n chunks whose rows lie one after the other; up to some
/// 80 take no memory but the stack's.
template <class T>
void check_chunks_apart(std::span<const Chunk<T>> chunks) {
  if (chunks.size() < 2) return;
  alignas(std::max_align_t) std::array<std::byte, 18432> stack;
  std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());

  // By the one way of sorting that there is: another takes who includes this a while to compile.
  std::pmr::vector<std::int32_t> order(&memory);
  const auto sort_all = [&](std::size_t count, const auto& before) {
    order.resize(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = static_cast<std::int32_t>(i);
    sort_slots(order.data(), static_cast<Index>(count), SlotLess(before));
  };
  const auto sequence_of = [&](std::int32_t c) {
    return chunks[static_cast<std::size_t>(c)].sequence;
  };
  sort_all(chunks.size(),
           [&](std::int32_t a, std::int32_t b) { return sequence_of(a) < sequence_of(b); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Index sequence = sequence_of(order[i]);
    if (sequence != sequence_of(order[i - 1])) continue;
    refuse("chunks", "different sequences", text("sequence ", sequence, " twice"));
  }

  // In order of address only those are compared that reach beyond where the next one begins.
  struct Reach {
    std::intptr_t first, last;
    std::size_t chunk;
    int view;
  };
  std::pmr::vector<Reach> reaches(&memory);
  reaches.reserve(chunks.size() * footprints_of(chunks[0]).size());
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const auto views = footprints_of(chunks[c]);
    for (int v = 0; v < static_cast<int>(views.size()); ++v) {
      const Footprint& view = views[static_cast<std::size_t>(v)];
      if (view.extents[0] == 0) continue;
      const auto [low, high] = view.range(view.extents[0]);
      reaches.push_back({view.address_of(low), view.address_of(high), c, v});
    }
  }
  const auto reach_of = [&](std::int32_t i) -> const Reach& {
    return reaches[static_cast<std::size_t>(i)];
  };
  sort_all(reaches.size(),
           [&](std::int32_t a, std::int32_t b) { return reach_of(a).first < reach_of(b).first; });
  const auto view_of = [&](const Reach& reach) {
    return footprints_of(chunks[reach.chunk])[static_cast<std::size_t>(reach.view)];
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Reach& a = reach_of(order[i]);
    for (std::size_t j = i + 1; j < order.size() && reach_of(order[j]).first < a.last; ++j) {
      const Reach& b = reach_of(order[j]);
      const bool written = a.view < kWrittenFootprints || b.view < kWrittenFootprints;
      if (!written || a.chunk == b.chunk || !overlap(view_of(a), view_of(b))) continue;
      refuse("chunks", "an out and lse apart from the views of all others", "one that overlaps");
    }
  }
}

}  // namespace tersekv::detail
