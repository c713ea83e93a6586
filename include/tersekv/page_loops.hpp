// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/config.hpp"
#include "tersekv/head_view.hpp"
#include "tersekv/simd.hpp"

// Loops over a head's slots, page by page and in vectors: inlined, as what they hold in registers
// would else go through memory with every page.

namespace tersekv::detail {

/// f(first slot, how many) for the parts of pages that hold the `size` slots from `first` on, of n
/// that will be asked for. Asks ahead for columns.
template <class Head, class F>
[[gnu::always_inline]] inline void for_each_part(const Head& head, Index first, Index size, Index n,
                                                 F&& f) {
  const Index page = head.page_size();
  Index index = head.page_index(first), skip = head.in_page(first);
  // Columns are short and far apart: where there are many, the processor does not guess them.
  const Index ahead = n >= kMemoryEntries ? 8 : 4;
  const Index asked = n >= kFarEntries ? head.page_index(n - 1) - ahead : -1;
  for (Index left = size; left > 0; ++index, skip = 0) {
    if (index <= asked) head.ask_for_columns(index + ahead);
    PageSlot slot = head.page_slot(index);
    slot.in_page = skip;
    const Index count = std::min(page - skip, left);
    f(slot, count);
    left -= count;
  }
}
/// The same for the pages that hold slots [0, n).
template <class Head, class F>
[[gnu::always_inline]] inline void for_each_page(const Head& head, Index n, F&& f) {
  for_each_part(head, 0, n, n, f);
}

/// f(vector) for the `count` slots from `slot` on, in its page.
template <class F>
[[gnu::always_inline]] inline void for_each_vector_of(PageSlot slot, Index count, F&& f) {
  Index at = 0;
  for (; at + simd::kLanes <= count; at += simd::kLanes) f(SlotVector<true>{slot.plus(at)});
  if (at < count) f(SlotVector<false>{slot.plus(at), count - at});
}
/// f(vectors...) for the same: four where so many whole ones follow, else one. For bodies that are
/// short beside the loop around them; those of 128 bits would be too much code for what it saves.
template <class F>
[[gnu::always_inline]] inline void for_each_few_of(PageSlot slot, Index count, F&& f) {
  constexpr Index lanes = simd::kLanes;
  const auto whole = [&](Index at) { return SlotVector<true>{slot.plus(at)}; };
  Index at = 0;
  if constexpr (lanes > 4) {
    for (; at + 4 * lanes <= count; at += 4 * lanes) {
      f(whole(at), whole(at + lanes), whole(at + 2 * lanes), whole(at + 3 * lanes));
    }
  }
  for_each_vector_of(slot.plus(at), count - at, f);
}

}  // namespace tersekv::detail
