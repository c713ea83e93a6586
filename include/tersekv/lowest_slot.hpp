// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tersekv/config.hpp"
#include "tersekv/head_view.hpp"
#include "tersekv/page_loops.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"

// The search that ends a policy's step: for the entry with the lowest key, in vectors.

namespace tersekv::detail {

inline constexpr float kBarred = std::numeric_limits<float>::max();  // key of the ineligible

/// The keys of the eligible among `slots`, and kBarred in place of all others.
template <bool whole, class Eligible, class Key>
inline simd::Floats keys_of(const SlotVector<whole>& slots, Eligible& eligible, Key& key) {
  const simd::Floats barred = simd::broadcast(kBarred);
  const simd::Floats keys = choose(eligible(slots), key(slots), barred);
  return slots.live < simd::kLanes ? simd::first_lanes(keys, slots.live, barred) : keys;
}

/// Of `best` and the slots whose `keys` are at most `most` that with the lowest position. `best` is
/// one of the lowest, lest a compiler round keys otherwise here than where they were found lowest.
template <class Head, class Keys>
[[gnu::noinline]] Index eldest_at_most(const Head& head, Index n, Keys& keys, float most,
                                       Index best) {
  const auto look_at = [&](auto slots) {
    unsigned lanes = simd::lanes_at_most(keys(slots), most);
    for (; lanes != 0; lanes &= lanes - 1) {
      const Index here = slots + Index{std::countr_zero(lanes)};
      if (head.position(here) < head.position(best)) best = here;
    }
  };
  for_each_page(head, n, [&](PageSlot slot, Index count) {  //
    for_each_vector_of(slot, count, look_at);
  });
  return best;
}

/// The slot in [0, n) with the lowest `key` among the eligible, or -1 where no key is below
/// kBarred; ties go to the lower position. Each lane's lowest key and its slot in one pass without
/// branches; a second pass only where several slots share the key, which shows by the lane's
/// lowest but one.
template <class Head, class Eligible, class Key>
Index lowest_slot(const Head& head, Index n, Eligible& eligible, Key& key) {
  const auto keys_at = [&](auto slots) { return keys_of(slots, eligible, key); };
  simd::Floats low = simd::broadcast(kBarred), next = low;
  simd::Ints slots_of_low = {};
  const auto add = [&](auto slots) __attribute__((always_inline)) {
    const simd::Floats keys = keys_at(slots);
    slots_of_low = keys < low ? simd::Ints{} + static_cast<std::int32_t>(slots) : slots_of_low;
    next = simd::min(next, simd::max(keys, low));
    low = simd::min(keys, low);
  };
  for_each_page(head, n, [&](PageSlot slot, Index count) {
    for_each_few_of(slot, count, [&](auto... slots) { (add(slots), ...); });
  });
  const float lowest = simd::min(low);
  if (lowest == kBarred) return -1;
  const unsigned lanes = simd::lanes_at_most(low, lowest);
  const int lane = std::countr_zero(lanes);
  const Index best = slots_of_low[lane] + Index{lane};
  if (std::has_single_bit(lanes) && simd::lanes_at_most(next, lowest) == 0) return best;
  return eldest_at_most(head, n, keys_at, lowest, best);
}

}  // namespace tersekv::detail
