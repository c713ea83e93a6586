// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/cuda/body/context.hpp"
#include "tersekv/head.hpp"

namespace tersekv::cuda {

/// Entries that attention reads at a time; a page of a cache on a device holds a multiple.
inline constexpr Index kLeastPageSize = 64;

/// A pool's idle pages, on the device: `list[0, count)`. Within one kernel pages are either taken
/// or given, never both, so two counters without order do.
struct FreePages {
  std::byte** list = nullptr;
  std::int32_t* count = nullptr;
  std::int32_t* failed = nullptr;  ///< heads that found no page; the host reads it when it may

  /// All of `wanted` pages or none; false where there are not enough. By one thread.
  template <class Context>
  TERSEKV_HD bool take(const Context& context, std::int32_t wanted, std::byte** to) const {
    if (wanted == 1) {
      // As in a decode step, by all heads at once: of comparisons all but one would fail each time.
      // The count is too low for a moment only where there is no page.
      const std::int32_t idle = context.fetch_add(count, -1);
      if (idle > 0) *to = list[idle - 1];
      if (idle <= 0) context.fetch_add(count, 1);
      return idle > 0;
    }
    std::int32_t idle = context.fetch_add(count, 0);
    while (idle >= wanted) {
      const std::int32_t before = context.compare_exchange(count, idle, idle - wanted);
      if (before == idle) {
        for (std::int32_t i = 0; i < wanted; ++i) to[i] = list[idle - wanted + i];
        return true;
      }
      idle = before;  // another head was faster
    }
    return false;
  }
  template <class Context>
  TERSEKV_HD void give(const Context& context, std::int32_t pages, std::byte** from) const {
    const std::int32_t first = context.fetch_add(count, pages);
    for (std::int32_t i = 0; i < pages; ++i) list[first + i] = from[i];
  }
};

/// The heads of a cache in device memory. Head = sequence * num_kv_heads + kv_head.
template <class KeyCodec, class ValueCodec>
struct DeviceHeads {
  using Key = KeyCodec;
  using Value = ValueCodec;

  PageLayout layout;  ///< of pages in one piece
  Shape shape;
  Index num_kv_heads = 0;
  Index most_pages = 0;          ///< of a head
  std::byte** tables = nullptr;  ///< [heads, most_pages]
  std::int32_t* held = nullptr;  ///< [heads]: pages in its table, no fewer than it needs
  HeadState* states = nullptr;   ///< [heads]
  float* registers = nullptr;    ///< [heads, layout.registers]
  FreePages free_pages;

  TERSEKV_HD std::byte** table(Index head) const { return tables + head * most_pages; }
  TERSEKV_HD Index pages_for(Index entries) const {
    return (entries + layout.page_size - 1) >> layout.shift;
  }
  /// Pages for `entries` entries, as far as they are not among the `has` that the head holds, which
  /// the caller has read from `held`; false, and counted in `failed`, where there are not enough,
  /// or its table has no room. By one thread.
  template <class Context>
  TERSEKV_HD bool take_pages(const Context& context, Index head, std::int32_t has,
                             Index entries) const {
    const auto wanted = static_cast<std::int32_t>(pages_for(entries));
    if (wanted <= has) return true;
    const bool fits =
        wanted <= most_pages && free_pages.take(context, wanted - has, table(head) + has);
    if (fits) {
      held[head] = wanted;
    } else {
      context.fetch_add(free_pages.failed, 1);
    }
    return fits;
  }
  /// Those of the `has` pages of a head that `entries` entries do not take, back to the pool. By
  /// one thread.
  template <class Context>
  TERSEKV_HD void return_pages(const Context& context, Index head, std::int32_t has,
                               Index entries) const {
    const auto kept = static_cast<std::int32_t>(pages_for(entries));
    if (kept >= has) return;
    free_pages.give(context, has - kept, table(head) + kept);
    held[head] = kept;
  }
  /// For a policy's bodies. The layout and the shape must outlive it: they are the kernel's.
  TERSEKV_HD Head<KeyCodec, ValueCodec> head(Index head, const Scratch& scratch) const {
    return {table(head),   table(head), &layout,
            states + head, &shape,      registers + head * layout.registers,
            scratch};
  }
};

/// Rows that kernels of one cache work with. A launch gives every head of its sequences a row of
/// each; `stride` entries, whole pages.
struct DeviceScratch {
  Index stride = 0;
  float* floats = nullptr;        ///< [heads, stride]
  float* vectors = nullptr;       ///< [heads, vector_room], Scratch::kRows * head_dim
  std::int32_t* slots = nullptr;  ///< [heads, Scratch::kSlotLists * stride]
  float* attention = nullptr;     ///< [heads, stride]
  float* logits = nullptr;        ///< [heads, rows, group, stride]
  float* queries = nullptr;       ///< [heads, rows, group, head_dim], of observed rows
  float* lse = nullptr;           ///< [heads, rows, group]
  std::byte* exchange = nullptr;  ///< [heads, kMostTeamBlocks, kExchangeBytes]
  Index head_dim = 0, vector_room = 0, group = 0, rows = 0;

  static constexpr int kMostTeamBlocks = 8;
  static constexpr int kExchangeBytes = 64;

  TERSEKV_HD Scratch of(Index head) const {
    return {floats + head * stride, vectors + head * vector_room,
            slots + head * Scratch::kSlotLists * stride};
  }
  TERSEKV_HD float* attention_of(Index head) const { return attention + head * stride; }
  TERSEKV_HD float* logits_of(Index head, Index row) const {
    return logits + (head * rows + row) * group * stride;
  }
  TERSEKV_HD float* lse_of(Index head, Index row) const {
    return lse + (head * rows + row) * group;
  }
  TERSEKV_HD float* query_of(Index head, Index row) const {
    return queries + (head * rows + row) * group * head_dim;
  }
  TERSEKV_HD std::byte* exchange_of(Index head) const {
    return exchange + head * kMostTeamBlocks * kExchangeBytes;
  }
};

}  // namespace tersekv::cuda
