// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tersekv/config.hpp"
#include "tersekv/cuda/body/context.hpp"
#include "tersekv/cuda/body/heads.hpp"

namespace tersekv::cuda {

/// A slot, and what it is compared by.
struct Best {
  Index slot = -1;  ///< none
  Index position = 0;
  float key = 0;
};
/// The lower key, then the lower position, then the lower slot.
struct Better {
  TERSEKV_HD Best operator()(const Best& a, const Best& b) const {
    if (a.slot < 0 || b.slot < 0) return a.slot < 0 ? b : a;
    if (a.key != b.key) return a.key < b.key ? a : b;
    if (a.position != b.position) return a.position < b.position ? a : b;
    return a.slot < b.slot ? a : b;
  }
};

/// The team of a device: the threads of a block, or of a few blocks that work on one long head. The
/// operations and their rules are those of `tersekv::SerialTeam`; every one begins and ends with a
/// barrier. `exchange` is global memory, kMostTeamBlocks * kExchangeBytes, for what blocks tell
/// each other.
template <class Context>
class BlockTeam {
 public:
  TERSEKV_HD BlockTeam(const Context& context, std::byte* exchange)
      : context_(context), exchange_(exchange) {}

  /// This thread of the team, and how many there are.
  TERSEKV_HD Index lane() const {
    return Index{context_.team_rank()} * context_.threads() + context_.thread();
  }
  TERSEKV_HD Index lanes() const { return Index{context_.team_blocks()} * context_.threads(); }
  TERSEKV_HD void barrier() const {
    context_.team_blocks() == 1 ? context_.barrier() : context_.team_barrier();
  }

  /// Entries that a lane looks at together, where a loop stores nothing: what a team does for an
  /// entry is to wait for its numbers.
  static constexpr int kAtOnce = 4;

  template <class F>
  TERSEKV_HD void for_each(Index n, F&& f) const {
    barrier();
    for (Index i = lane(); i < n; i += lanes()) f(i);
    barrier();
  }
  template <class Head, class F>
  TERSEKV_HD void for_each_entry(const Head& head, Index n, F&& f) const {
    barrier();
    for (Index i = lane(); i < n; i += lanes()) f(slot_of(head, i));
    barrier();
  }
  template <class Head, class F>
  TERSEKV_HD void for_each_vector(const Head& head, Index n, F&& f) const {
    for_each_entry(head, n, f);
  }
  template <class Head, class Read, class Write>
  TERSEKV_HD void for_each_vector(const Head& head, Index n, Read&& read, Write&& write) const {
    barrier();
    for (Index start = lane(); start < n; start += kAtOnce * lanes()) {
      using Number = decltype(read(PageSlot{}));
      Number numbers[kAtOnce];
      TERSEKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const Index i = start + u * lanes();
        numbers[u] = read(slot_of(head, i < n ? i : start));
      }
      TERSEKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const Index i = start + u * lanes();
        if (i < n) write(slot_of(head, i), numbers[u]);
      }
    }
    barrier();
  }
  template <class F>
  TERSEKV_HD void once(F&& f) const {
    barrier();
    if (lane() == 0) f();
    barrier();
  }

  template <class Head, class Eligible, class Key, class Position>
  TERSEKV_HD Index argmin(const Head& head, Index n, Eligible&& eligible, Key&& key,
                          Position&& position) const {
    Best mine = lowest_of_lane(
        head, n, eligible, key, [&](const Best& so_far, Index i, PageSlot slot, float key_of) {
          const bool tie = so_far.slot >= 0 && key_of == so_far.key;  // positions decide it
          return tie && position(slot_of(head, so_far.slot)) <= position(slot) ? so_far
                                                                               : Best{i, 0, key_of};
        });
    if (mine.slot >= 0) mine.position = position(slot_of(head, mine.slot));
    return team_reduce(mine, Better()).slot;
  }
  template <class Head, class Eligible, class Key>
  TERSEKV_HD Index argmin(const Head& head, Index n, Eligible&& eligible, Key&& key) const {
    return argmin(head, n, eligible, key, [&](auto slot) { return head.position(slot); });
  }
  template <class Head, class Eligible, class Least, class Key>
  TERSEKV_HD Index argmin_bounded(const Head& head, Index n, Eligible&& eligible, Least&& least,
                                  Key&& key) const {
    const Best mine = lowest_of_lane(
        head, n, eligible, least, [&](const Best& so_far, Index i, PageSlot slot, float) {
          return Better()(so_far, Best{i, head.position(slot), key(slot)});
        });
    return team_reduce(mine, Better()).slot;
  }
  template <class Head, class Eligible, class Key, class... Position>
  TERSEKV_HD Index argmax(const Head& head, Index n, Eligible&& eligible, Key&& key,
                          Position&&... position) const {
    return argmin(
        head, n, eligible, [&](auto slot) { return -key(slot); }, position...);
  }

  template <class Head, class Eligible, class Key>
  TERSEKV_HD void smallest(Index k, const Head& head, Index n, Eligible&& eligible, Key&& key,
                           std::int32_t* out) const {
    if (k == 1) {
      const Index best = argmin(head, n, eligible, key);
      once([&] { out[0] = static_cast<std::int32_t>(best); });
      return;
    }
    const Index found = collect(head, n, eligible, out);
    sort(out, found, [&](std::int32_t a, std::int32_t b) {
      const float key_a = key(Index{a}), key_b = key(Index{b});
      return key_a < key_b || (key_a == key_b && head.position(Index{a}) < head.position(Index{b}));
    });
  }

  template <class Head, class Wanted>
  TERSEKV_HD Index collect(const Head&, Index n, Wanted&& wanted, std::int32_t* out) const {
    barrier();
    // A run of slots for every warp, whose lanes read neighbours, so that one prefix sum orders
    // all.
    const Index warp = lane() / kWarp, run = (n + lanes() - 1) / lanes() * kWarp;
    const Index first = warp * run < n ? warp * run : n;
    const Index last = first + run < n ? first + run : n;
    const int in_warp = static_cast<int>(lane() % kWarp);
    const auto wanted_by = [&](Index start) {  // a bit for every lane
      return context_.ballot(start + in_warp < last && wanted(start + in_warp));
    };
    int of_warp = 0;
    for (Index i = first; i < last; i += kWarp) of_warp += count_bits(wanted_by(i));
    int total = 0;
    const Index before = team_exclusive_sum(in_warp == 0 ? of_warp : 0, total);
    Index to = context_.shuffle(before, 0);
    for (Index i = first; i < last; i += kWarp) {
      const std::uint32_t all = wanted_by(i), mine = std::uint32_t{1} << in_warp;
      if ((all & mine) != 0) {
        out[to + count_bits(all & (mine - 1))] = static_cast<std::int32_t>(i + in_warp);
      }
      to += count_bits(all);
    }
    barrier();
    return total;
  }

  /// Batcher's odd-even merge sort, in place: every comparator points upwards, so any n will do.
  /// O(n log^2 n) over the team's threads. All strides are powers of two: devices divide slowly.
  template <class Less>
  TERSEKV_HD void sort(std::int32_t* items, Index n, Less&& less) const {
    barrier();
    for (Index p = 1; p < n; p *= 2) {
      for (Index k = p; k >= 1; k /= 2) {
        for (Index i = lane(); i + k < n; i += lanes()) {
          // (i - k % p) / k is odd, or i and i + k lie in different runs of 2 p.
          const Index skip = k & (p - 1);
          if (i < skip || ((i - skip) & k) != 0 || ((i ^ (i + k)) & -(2 * p)) != 0) continue;
          const std::int32_t a = items[i], b = items[i + k];
          if (less(b, a)) {
            items[i] = b;
            items[i + k] = a;
          }
        }
        barrier();
      }
    }
  }

  template <class Head>
  TERSEKV_HD void copy_entries(const Head& head, const std::int32_t* from, const std::int32_t* to,
                               Index n) const {
    // A warp for some elements of an entry: mostly one leaves, and the team has no more to do.
    const auto dim = static_cast<std::uint32_t>(head.head_dim());
    const auto elements = dim + static_cast<std::uint32_t>(head.num_statistics());
    const std::uint32_t parts = (elements + kWarp - 1) / kWarp;
    const auto all = static_cast<std::uint32_t>(n) * parts;
    const auto warps = static_cast<std::uint32_t>(lanes() / kWarp);
    barrier();
    for (auto w = static_cast<std::uint32_t>(lane() / kWarp); w < all; w += warps) {
      const std::uint32_t a = w / parts;
      const std::uint32_t j = w % parts * kWarp + static_cast<std::uint32_t>(lane() % kWarp);
      if (j == 0) head.copy_numbers(from[a], to[a]);
      if (j < dim) {
        head.copy_element(from[a], to[a], j);
      } else if (j < elements) {
        head.copy_statistic(from[a], to[a], j - dim);
      }
    }
    barrier();
  }

  template <class Head, class F>
  TERSEKV_HD void write_key(const Head& head, Index slot, F&& f) const {
    for_each(head.head_dim(), [&](Index j) { head.set_key(slot, j, f(j)); });
  }
  template <class Head, class F>
  TERSEKV_HD void write_value(const Head& head, Index slot, F&& f) const {
    for_each(head.head_dim(), [&](Index j) { head.set_value(slot, j, f(j)); });
  }

  /// Two entries a lane, which lie side by side: a page holds whole pairs, so there is something
  /// behind an odd last one.
  template <int MostRows = 1, class Head>
  TERSEKV_HD void dot(const Head& head, const float* vectors, Index n, float* out, Index rows = 1,
                      Index stride = 0) const {
    using Key = typename Head::Key;
    const Index page = head.page_size(), dim = head.head_dim();
    for_each((n + 1) / 2, [&](Index pair) {
      const Index slot = 2 * pair;
      const auto* key = head.key_page(head.page_index(slot)) + head.in_page(slot);
      for (Index r = 0; r < (MostRows == 1 ? 1 : rows); ++r) {  // the first brings the keys near
        const float* vector = vectors + r * dim;
        float total[2] = {}, part[2] = {};
        for (Index start = 0; start < dim; start += kRun) {
          const Index end = start + kRun < dim ? start + kRun : dim;
          part[0] = part[1] = 0;
          TERSEKV_UNROLL_BY(16)
          for (Index j = start; j < end; ++j) {
            const auto two = *reinterpret_cast<const KeyPair<Key>*>(key + j * page);
            part[0] += to_float(two.first) * vector[j];
            part[1] += to_float(two.second) * vector[j];
          }
          total[0] += part[0];
          total[1] += part[1];
        }
        out[r * stride + slot] = total[0];
        if (slot + 1 < n) out[r * stride + slot + 1] = total[1];
      }
    });
  }
  /// A lane for each run of a key, and neighbouring entries side by side: the sums are those of
  /// `dot`, to the bit.
  template <class Head, class F>
  TERSEKV_HD void for_each_square(const Head& head, Index first, Index count, F&& f) const {
    const Index page = head.page_size(), dim = head.head_dim();
    int runs = 1;  // at a time
    while (runs < kWarp && runs * kRun < dim) runs *= 2;
    const int entries = kWarp / runs, in_warp = static_cast<int>(lane() % kWarp);
    const int entry = in_warp & (entries - 1), run = in_warp / entries;
    barrier();
    for (Index i = lane() / kWarp * entries; i < count; i += lanes() / kWarp * entries) {
      const bool there = i + entry < count;
      const Index slot = first + i + (there ? entry : 0);
      const auto* key = head.key_page(head.page_index(slot)) + head.in_page(slot);
      float total = 0;
      for (Index base = 0; base < dim; base += runs * kRun) {
        const Index start = base + run * kRun, end = start + kRun < dim ? start + kRun : dim;
        float part = 0;
        TERSEKV_UNROLL_BY(16)
        for (Index j = start; j < end; ++j) {
          const float x = to_float(key[j * page]);
          part += x * x;
        }
        for (int r = 0; r < runs && base + r * kRun < dim; ++r) {
          total += context_.shuffle(part, r * entries + entry);
        }
      }
      if (there && run == 0) f(slot, total);
    }
    barrier();
  }

 private:
  TERSEKV_HD static int count_bits(std::uint32_t word) {
#if defined(__CUDA_ARCH__)
    return __popc(word);
#else
    return std::popcount(word);
#endif
  }
  template <class Head>
  TERSEKV_HD static PageSlot slot_of(const Head& head, Index i) {
    PageSlot slot = head.page_slot(head.page_index(i));
    slot.in_page = head.in_page(i);
    return slot;
  }

  /// Products are added up in runs of so many dimensions: short sums keep a float's precision. A
  /// warp has a lane for each.
  static constexpr Index kRun = 32;
  template <class E>
  struct alignas(2 * sizeof(E)) KeyPair {
    E first, second;
  };

  /// The best of this lane's eligible entries, as better(best so far, i, slot, least) says of each
  /// whose `least`, which no key is below, is not above the best's key.
  template <class Head, class Eligible, class Least, class OrBetter>
  TERSEKV_HD Best lowest_of_lane(const Head& head, Index n, Eligible& eligible, Least& least,
                                 const OrBetter& better) const {
    barrier();
    Best mine;
    for (Index start = lane(); start < n; start += kAtOnce * lanes()) {
      bool may[kAtOnce];
      float low[kAtOnce];
      TERSEKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const Index i = start + u * lanes();
        const PageSlot slot = slot_of(head, i < n ? i : start);
        // Looked at whether it may leave or not: no load waits for another.
        low[u] = least(slot);
        may[u] = eligible(slot) && i < n;
      }
      TERSEKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        if (!may[u] || (mine.slot >= 0 && low[u] > mine.key)) continue;
        const Index i = start + u * lanes();
        mine = better(mine, i, slot_of(head, i), low[u]);
      }
    }
    return mine;
  }

  template <class T>
  TERSEKV_HD void tell(const T& x) const {
    static_assert(sizeof(T) <= DeviceScratch::kExchangeBytes);
    if (context_.thread() == 0) {
      std::memcpy(exchange_ + context_.team_rank() * DeviceScratch::kExchangeBytes, &x, sizeof x);
    }
    context_.team_barrier();
  }
  template <class T>
  TERSEKV_HD T told_by(int rank) const {
    T x;
    std::memcpy(&x, exchange_ + rank * DeviceScratch::kExchangeBytes, sizeof x);
    return x;
  }
  template <class T, class Op>
  TERSEKV_HD T team_reduce(const T& mine, Op op) const {
    const T of_block = context_.reduce(mine, op);
    if (context_.team_blocks() == 1) return of_block;
    tell(of_block);
    T total = told_by<T>(0);
    for (int r = 1; r < context_.team_blocks(); ++r) total = op(total, told_by<T>(r));
    context_.team_barrier();
    return total;
  }
  TERSEKV_HD Index team_exclusive_sum(int mine, int& total) const {
    const int before = context_.exclusive_sum(mine, total);
    if (context_.team_blocks() == 1) return before;
    tell(total);
    int of_earlier = 0;
    total = 0;
    for (int r = 0; r < context_.team_blocks(); ++r) {
      const int theirs = told_by<int>(r);
      if (r < context_.team_rank()) of_earlier += theirs;
      total += theirs;
    }
    context_.team_barrier();
    return of_earlier + before;
  }

  const Context& context_;
  std::byte* exchange_;
};

}  // namespace tersekv::cuda
