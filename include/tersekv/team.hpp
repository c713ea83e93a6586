// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "tersekv/attention.hpp"
#include "tersekv/config.hpp"
#include "tersekv/key_products.hpp"
#include "tersekv/lowest_slot.hpp"
#include "tersekv/page_loops.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/slot_order.hpp"

namespace tersekv {

#if defined(__CUDACC__)  // SerialTeam is marked for the device, and calls what only the host has
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20013, 20014, 20015
#endif

namespace detail {
/// A body that takes a SlotVector as well, and gives a vector then: said, as it cannot be asked
/// without compiling the body.
template <class F>
struct OfVectors : F {};
template <class F>
OfVectors(F) -> OfVectors<F>;
template <class F>
inline constexpr bool kOfVectors = false;
template <class F>
inline constexpr bool kOfVectors<OfVectors<F>> = true;
}  // namespace detail

/// A **team** is the lanes that work together on one KV head: on the CPU one thread, on a GPU a
/// thread block, in the tests several real threads. Policy parts are written against a team and
/// name no thread. All lanes run the part's body; what differs per lane happens only inside the
/// operations below. Rules:
///
/// - every operation begins and ends with a barrier and returns the same on all lanes
/// - between operations all lanes do the same reads and write nothing
/// - inside `for_each` and `for_each_entry` an index may write what no other index reads or writes
///
/// Operations over a head's entries call their bodies with a slot: an Index, or whatever converts
/// to one and reads its columns faster (`PageSlot`), so bodies take `auto slot` where it counts.
/// Bodies that ask (eligible, key, wanted, position) must have an answer for every slot in [0, n),
/// the same whenever asked, and keys are finite. Ties go to the lower position, for victims and for
/// targets.
///
/// This one is the CPU's: loops over the pages that the compiler vectorises, and no barrier. (Its
/// functions are marked for the device only because what calls them is.)
class SerialTeam {
 public:
#if defined(__CUDACC__)  // whose compiler knows no vectors in what a device might call
  static constexpr bool kVectors = false;
#else
  static constexpr bool kVectors = true;
#endif

  /// f(i) for i in [0, n), in any order.
  template <class F>
  TERSEKV_HD void for_each(Index n, F&& f) const {
    for (Index i = 0; i < n; ++i) f(i);
  }

  /// f(slot) for the head's slots [0, n), in any order.
  template <class Head, class F>
  TERSEKV_HD void for_each_entry(const Head& head, Index n, F&& f) const {
    detail::for_each_page(head, n, [&](PageSlot slot, Index count) {
      for (Index i = 0; i < count; ++i, ++slot.in_page) f(slot);
    });
  }

  /// f(slot) for the head's slots [0, n), many at a time where there are vectors: a SlotVector
  /// here, a slot with other teams. For arithmetic that knows floats and vectors of floats.
  template <class Head, class F>
  TERSEKV_HD void for_each_vector(const Head& head, Index n, F&& f) const {
    if constexpr (kVectors) {
      detail::for_each_page(
          head, n, [&](PageSlot slot, Index count) { detail::for_each_vector_of(slot, count, f); });
    } else {
      for_each_entry(head, n, f);
    }
  }

  /// write(slot, read(slot)) for the same slots, where some may be read before others are written:
  /// what is written for one slot is read for no other. A device then waits for many numbers at a
  /// time.
  template <class Head, class Read, class Write>
  TERSEKV_HD void for_each_vector(const Head& head, Index n, Read&& read, Write&& write) const {
    for_each_vector(head, n, [&](auto slot) { write(slot, read(slot)); });
  }

  /// f() on one lane.
  template <class F>
  TERSEKV_HD void once(F&& f) const {
    f();
  }

  /// The slot in [0, n) with the lowest `key` among the eligible, or -1 where none is. O(n).
  template <class Head, class Eligible, class Key>
  TERSEKV_HD Index argmin(const Head& head, Index n, Eligible&& eligible, Key&& key) const {
    if constexpr (kInVectors<Eligible, Key>) {
      const Index best = detail::lowest_slot(head, n, eligible, key);
      return best >= 0 ? best
                       : eldest(n, eligible, [&](Index slot) { return head.position(slot); });
    } else {
      return argmin(head, n, eligible, key, [&](auto slot) { return head.position(slot); });
    }
  }
  /// The same with other positions, for ties, which may be the rule.
  template <class Head, class Eligible, class Key, class Position>
  TERSEKV_HD Index argmin(const Head& head, Index n, Eligible&& eligible, Key&& key,
                          Position&& position) const {
    // A block's keys first, in a loop without branches; then the few that can be the lowest.
    alignas(64) float keys[kBlock];
    Index best = -1;
    float best_key = kBarred;
    for (Index first = 0; first < n; first += kBlock) {
      const Index size = std::min(Index{kBlock}, n - first);
      const float low = keys_of_block(head, first, size, n, eligible, key, keys);
      if (low > best_key || low == kBarred) continue;
      for (Index from = 0; from < size; from += simd::kLanes) {
        for_lanes_at_most(keys + from, low, [&](Index lane) {
          const Index slot = first + from + lane;
          if (low < best_key || position(slot) < position(best)) best = slot;
          best_key = low;
        });
      }
    }
    return best >= 0 ? best : eldest(n, eligible, position);
  }

  /// As argmin, for a key that takes long: asked for only where `least(slot)`, which is no higher,
  /// leaves a chance. `least` takes a while, too, if there is a `rough` one: no higher than the key
  /// either, and asked for first. All but the key are of vectors then. O(n) bounds, at most n + 1
  /// keys.
  template <class Head, class Eligible, class Least, class Key, class... Rough>
  TERSEKV_HD Index argmin_bounded(const Head& head, Index n, Eligible&& eligible, Least&& least,
                                  Key&& key, const Rough&... rough) const {
    alignas(64) float bounds[kBlock];
    Index best = -1;
    float best_key = kBarred;
    const auto look_at = [&](Index slot) {
      if (slot == best) return;
      const float here = key(slot);
      const bool level = here == best_key && best >= 0;
      if (here < best_key || (level && head.position(slot) < head.position(best))) {
        best = slot;
        best_key = here;
      }
    };
    for (Index first = 0; first < n; first += kBlock) {
      const Index size = std::min(Index{kBlock}, n - first);
      const float low =
          keys_of_block(head, first, size, n, eligible, first_of(rough..., least), bounds);
      if (!(low <= best_key) || low == kBarred) continue;  // nor a bound that is no number
      // What is bounded lowest is mostly among the lowest, and spares the others.
      if (best < 0) look_at(first + lowest_at(bounds, size, low));
      for (Index from = 0; from < size; from += simd::kLanes) {
        if constexpr (sizeof...(rough) > 0) {
          if (simd::lanes_at_most(simd::load(bounds + from), best_key) == 0) continue;
          raise(head, first + from, std::min<Index>(size - from, simd::kLanes), least,
                bounds + from);
        }
        for_lanes_at_most(bounds + from, best_key, [&](Index lane) {
          if (bounds[from + lane] != kBarred) look_at(first + from + lane);
        });
      }
    }
    return best >= 0 ? best : eldest(n, eligible, [&](Index slot) { return head.position(slot); });
  }

  /// The slot with the highest `key`; otherwise as argmin.
  template <class Head, class Eligible, class Key, class... Position>
  TERSEKV_HD Index argmax(const Head& head, Index n, Eligible&& eligible, Key&& key,
                          Position&&... position) const {
    return argmin(
        head, n, eligible, [&](auto slot) { return -key(slot); }, position...);
  }

  /// The `k` eligible slots with the lowest keys, lowest first, into `out` (room for n). There are
  /// at least k. O(n log k).
  template <class Head, class Eligible, class Key>
  TERSEKV_HD void smallest(Index k, const Head& head, Index n, Eligible&& eligible, Key&& key,
                           std::int32_t* out) const {
    if (k == 1) {
      out[0] = static_cast<std::int32_t>(argmin(head, n, eligible, key));
      return;
    }
    const Index found = collect(head, n, eligible, out);
    const auto before = [&](std::int32_t a, std::int32_t b) {
      const float key_a = key(Index{a}), key_b = key(Index{b});
      return key_a < key_b || (key_a == key_b && head.position(Index{a}) < head.position(Index{b}));
    };
    detail::first_slots(out, k, found, detail::SlotLess(before));
  }

  /// The slots in [0, n) that satisfy `wanted`, ascending, into `out`; returns how many. O(n).
  template <class Head, class Wanted>
  TERSEKV_HD Index collect(const Head& head, Index n, Wanted&& wanted, std::int32_t* out) const {
    Index found = 0;
    detail::for_each_page(head, n, [&](PageSlot slot, Index count) {
      if (!any_wanted(slot, count, wanted)) return;  // mostly none is, and that is quickly seen
      for (Index i = 0; i < count; ++i, ++slot.in_page) {
        if (wanted(slot)) out[found++] = static_cast<std::int32_t>(slot);
      }
    });
    return found;
  }

  /// Sorts `items` by `less`, a strict total order. O(n log n).
  template <class Less>
  TERSEKV_HD void sort(std::int32_t* items, Index n, Less&& less) const {
    detail::sort_slots(items, n, detail::SlotLess(less));
  }

  /// Entry from[a] into slot to[a], for a in [0, n); no slot is in both lists. O(n head_dim).
  template <class Head>
  TERSEKV_HD void copy_entries(const Head& head, const std::int32_t* from, const std::int32_t* to,
                               Index n) const {
    for (Index a = 0; a < n; ++a) head.copy_entry(from[a], to[a]);
  }

  /// The key, or value, of `slot`: f(dim) its elements. f may read the same element of the same
  /// entry and of `key_of`'s vector, which may be lost then, and entries that are not written.
  /// O(head_dim).
  template <class Head, class F>
  TERSEKV_HD void write_key(const Head& head, Index slot, F&& f) const {
    head.write_key(slot, f);
  }
  template <class Head, class F>
  TERSEKV_HD void write_value(const Head& head, Index slot, F&& f) const {
    head.write_value(slot, f);
  }

  /// out[r * stride + i] = <key of slot i, vectors[r]> for i in [0, n) and `rows` vectors of
  /// head_dim numbers each, at most MostRows; every row of `out` has room for n rounded up to whole
  /// pages. One pass over the keys, O(rows n head_dim).
  template <int MostRows = 1, class Head>
  TERSEKV_HD void dot(const Head& head, const float* vectors, Index n, float* out, Index rows = 1,
                      Index stride = 0) const {
    if (n > simd::kMostLanes) {
      key_products<MostRows>(head, 0, n, vectors, 1.0f, out, rows, stride);
    } else {
      for (Index r = 0; r < rows; ++r) {
        few_key_products(head, 0, vectors + r * head.head_dim(), 1.0f, out + r * stride);
      }
    }
  }

  /// f(slot, |key of slot|^2) for `count` slots from `first` on, the same bits as from `dot` with
  /// that key. Overwrites the head's scratch vectors and floats. O(count head_dim).
  template <class Head, class F>
  TERSEKV_HD void for_each_square(const Head& head, Index first, Index count, F&& f) const {
    float *key = head.scratch().vectors, *out = head.scratch().floats;
    for (Index slot = first; slot < first + count; ++slot) {
      for (Index j = 0; j < head.head_dim(); ++j) key[j] = head.key(slot, j);
      few_key_products(head, slot & -simd::kMostLanes, key, 1.0f, out);
      f(slot, out[slot]);
    }
  }

 private:
  static constexpr Index kBlock = 1024;  // entries whose keys are looked at together
  static constexpr float kBarred = detail::kBarred;
  /// Whether all of these bodies take vectors, and there are some.
  template <class... Bodies>
  static constexpr bool kInVectors = kVectors &&
                                     (detail::kOfVectors<std::remove_cvref_t<Bodies>> && ...);

  /// Whether any of the `count` slots from `slot` on, in its page, is wanted.
  template <class Wanted>
  static bool any_wanted(PageSlot slot, Index count, Wanted& wanted) {
    if constexpr (kInVectors<Wanted>) {
      simd::Ints any = {};
      const auto add = [&](auto slots) {
        any |= wanted(slots) & (simd::lane_numbers() < static_cast<std::int32_t>(slots.live));
      };
      detail::for_each_few_of(slot, count, [&](auto... slots) { (add(slots), ...); });
      return simd::any(any);
    } else {
      int any = 0;
      for (Index i = 0; i < count; ++i, ++slot.in_page) any |= wanted(slot) ? 1 : 0;
      return any != 0;
    }
  }

  /// The eligible slot with the lowest position, or -1: where no key is below what bars.
  template <class Eligible, class Position>
  static Index eldest(Index n, Eligible& eligible, Position&& position) {
    Index best = -1;
    for (Index i = 0; i < n; ++i) {
      if (eligible(i) && (best < 0 || position(i) < position(best))) best = i;
    }
    return best;
  }
  /// keys[i] of slot first + i, for `size` slots of n; returns the lowest.
  template <class Head, class Eligible, class Key>
  static float keys_of_block(const Head& head, Index first, Index size, Index n, Eligible& eligible,
                             Key& key, float* keys) {
    if constexpr (kInVectors<Eligible, Key>) {
      simd::Floats low = simd::broadcast(kBarred);
      const auto add = [&](auto slots) {
        const simd::Floats here = detail::keys_of(slots, eligible, key);
        low = simd::min(low, here);
        simd::store(keys + (slots - first), here);
      };
      detail::for_each_part(head, first, size, n, [&](PageSlot slot, Index count) {  //
        detail::for_each_vector_of(slot, count, add);
      });
      return simd::min(low);
    } else {
      detail::for_each_part(head, first, size, n, [&](PageSlot slot, Index count) {
        float* run = keys + (slot - first);
        for (Index i = 0; i < count; ++i, ++slot.in_page) {
          run[i] = detail::choose(eligible(slot), key(slot), kBarred);
        }
      });
      for (Index i = size; i < padded_dim(size); ++i) keys[i] = kBarred;
      return lowest(keys, size);
    }
  }
  /// f(lane) for those of a vector of keys that are no more than `most`, which may fall meanwhile.
  template <class F>
  static void for_lanes_at_most(const float* keys, const float& most, F&& f) {
    for (unsigned lanes = simd::lanes_at_most(simd::load(keys), most); lanes != 0;
         lanes &= lanes - 1) {
      const int lane = std::countr_zero(lanes);
      if (keys[lane] <= most) f(Index{lane});
    }
  }
  /// Where the first of keys[0, n), in whole vectors, is that is the lowest of them, `low`.
  static Index lowest_at(const float* keys, Index n, float low) {
    for (Index from = 0; from < n; from += simd::kLanes) {
      const unsigned lanes = simd::lanes_at_most(simd::load(keys + from), low);
      if (lanes != 0) return from + std::countr_zero(lanes);
    }
    return 0;
  }
  /// Raises the bounds of `live` slots from `first` on, in a page, to what `least` gives.
  template <class Head, class Least>
  static void raise(const Head& head, Index first, Index live, Least& least, float* bounds) {
    PageSlot slot = head.page_slot(head.page_index(first));
    slot.in_page = head.in_page(first);
    detail::for_each_vector_of(slot, live, [&](auto slots) {
      simd::store(bounds, detail::higher(simd::load(bounds), least(slots)));
    });
  }
  template <class First, class... Others>
  static First& first_of(First& first, Others&...) {
    return first;
  }
  /// Of keys[0, padded_dim(n)).
  static float lowest(const float* keys, Index n) {
    simd::Floats low = simd::load(keys);
    for (Index i = simd::kLanes; i < padded_dim(n); i += simd::kLanes) {
      low = simd::min(low, simd::load(keys + i));
    }
    return simd::min(low);
  }
};

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

}  // namespace tersekv
