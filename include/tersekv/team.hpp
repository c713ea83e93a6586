// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "tersekv/attention.hpp"
#include "tersekv/config.hpp"

namespace tersekv {

/// A **team** is the lanes that work together on one KV head: on the CPU one thread, on a GPU a
/// thread block, in the tests several real threads. Policy parts are written against a team and
/// name no thread. All lanes run the part's body; what differs per lane happens only inside the
/// operations below. Rules:
///
/// - every operation begins and ends with a barrier and returns the same on all lanes
/// - between operations all lanes do the same reads and write nothing
/// - inside `for_each` an index may write what no other index reads or writes
///
/// Ties go to the lower position, for victims and for targets.
///
/// This one is the CPU's: loops that the compiler may vectorise, and no barrier.
class SerialTeam {
 public:
  /// f(i) for i in [0, n), in any order.
  template <class F>
  void for_each(Index n, F&& f) const {
    for (Index i = 0; i < n; ++i) f(i);
  }

  /// f() on one lane.
  template <class F>
  void once(F&& f) const {
    f();
  }

  /// The slot in [0, n) with the lowest `key` among the eligible, or -1 where none is. O(n).
  template <class Eligible, class Key, class Position>
  Index argmin(Index n, Eligible&& eligible, Key&& key, Position&& position) const {
    Index best = -1;
    float best_key = 0;
    for (Index i = 0; i < n; ++i) {
      if (!eligible(i)) continue;
      const float k = key(i);
      if (best < 0 || k < best_key || (k == best_key && position(i) < position(best))) {
        best = i;
        best_key = k;
      }
    }
    return best;
  }

  /// The slot with the highest `key`; otherwise as argmin.
  template <class Eligible, class Key, class Position>
  Index argmax(Index n, Eligible&& eligible, Key&& key, Position&& position) const {
    return argmin(
        n, eligible, [&](Index i) { return -key(i); }, position);
  }

  /// The `k` eligible slots with the lowest keys, lowest first, into `out` (room for n). There are
  /// at least k. O(n + k log k).
  template <class Eligible, class Key, class Position>
  void smallest(Index k, Index n, Eligible&& eligible, Key&& key, Position&& position,
                std::int32_t* out) const {
    if (k == 1) {
      out[0] = static_cast<std::int32_t>(argmin(n, eligible, key, position));
      return;
    }
    const Index found = collect(n, eligible, out);
    const auto before = [&](std::int32_t a, std::int32_t b) {
      const float key_a = key(a), key_b = key(b);
      return key_a < key_b || (key_a == key_b && position(a) < position(b));
    };
    if (k < found) std::nth_element(out, out + k, out + found, before);
    std::sort(out, out + k, before);
  }

  /// The indices in [0, n) that satisfy `wanted`, ascending, into `out`; returns how many. O(n).
  template <class Wanted>
  Index collect(Index n, Wanted&& wanted, std::int32_t* out) const {
    Index count = 0;
    for (Index i = 0; i < n; ++i) {
      if (wanted(i)) out[count++] = static_cast<std::int32_t>(i);
    }
    return count;
  }

  /// Sorts `items` by `less`, a strict total order. O(n log n).
  template <class Less>
  void sort(std::int32_t* items, Index n, Less&& less) const {
    std::sort(items, items + n, less);
  }

  /// out[i] = <key of slot i, vector> for i in [0, n); `out` has room for n rounded up to whole
  /// pages. One pass over the keys, O(n head_dim).
  template <class Head>
  void dot(const Head& head, const float* vector, Index n, float* out) const {
    key_products(head, 0, n, vector, 1, head.head_dim(), 1.0f, out, 0);
  }
};

}  // namespace tersekv
