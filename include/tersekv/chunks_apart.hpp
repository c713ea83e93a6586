// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "tersekv/checks.hpp"
#include "tersekv/chunk.hpp"

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
  alignas(std::max_align_t) std::array<std::byte, 16384> stack;
  std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());

  std::pmr::vector<Index> sequences(&memory);
  sequences.reserve(chunks.size());
  for (const Chunk<T>& chunk : chunks) sequences.push_back(chunk.sequence);
  std::sort(sequences.begin(), sequences.end());
  const auto twice = std::adjacent_find(sequences.begin(), sequences.end());
  if (twice != sequences.end()) {
    refuse("chunks", "different sequences", text("sequence ", *twice, " twice"));
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
  std::sort(reaches.begin(), reaches.end(),
            [](const Reach& a, const Reach& b) { return a.first < b.first; });
  const auto view_of = [&](const Reach& reach) {
    return footprints_of(chunks[reach.chunk])[static_cast<std::size_t>(reach.view)];
  };
  for (std::size_t i = 0; i < reaches.size(); ++i) {
    const Reach& a = reaches[i];
    for (std::size_t j = i + 1; j < reaches.size() && reaches[j].first < a.last; ++j) {
      const Reach& b = reaches[j];
      const bool written = a.view < kWrittenFootprints || b.view < kWrittenFootprints;
      if (!written || a.chunk == b.chunk || !overlap(view_of(a), view_of(b))) continue;
      refuse("chunks", "an out and lse apart from the views of all others", "one that overlaps");
    }
  }
}

}  // namespace tersekv::detail
