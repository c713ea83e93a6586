// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "tersekv/team.hpp"

namespace support {

using tersekv::Index;

/// One lane of a team of real threads, with the operations and the rules of `tersekv::SerialTeam`:
/// every operation begins and ends with a barrier. It exists so that the thread sanitizer sees what
/// a GPU would do to a part that breaks those rules. Slow and obvious.
class ThreadTeam {
 public:
  /// body(team, lane) on `lanes` threads at once; returns when all are done.
  template <class Body>
  static void run(Index lanes, Body&& body) {
    Room room(lanes);
    std::vector<std::thread> threads;
    for (Index lane = 0; lane < lanes; ++lane) {
      threads.emplace_back([&room, &body, lane] {
        ThreadTeam team(room, lane);
        body(team, lane);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  template <class F>
  void for_each(Index n, F&& f) const {
    wait();
    for (Index i = lane_; i < n; i += lanes()) f(i);
    wait();
  }

  template <class Head, class F>
  void for_each_entry(const Head&, Index n, F&& f) const {
    for_each(n, f);
  }

  template <class Head, class F>
  void for_each_vector(const Head&, Index n, F&& f) const {
    for_each(n, f);
  }
  /// Reads all before it writes any, as a team may.
  template <class Head, class Read, class Write>
  void for_each_vector(const Head&, Index n, Read&& read, Write&& write) const {
    std::vector<decltype(read(Index{}))> numbers(static_cast<std::size_t>(n));
    for_each(n, [&](Index i) { numbers[static_cast<std::size_t>(i)] = read(i); });
    for_each(n, [&](Index i) { write(i, numbers[static_cast<std::size_t>(i)]); });
  }

  template <class F>
  void once(F&& f) const {
    wait();
    if (lane_ == lanes() - 1) f();
    wait();
  }

  template <class Head, class Eligible, class Key, class Position>
  Index argmin(const Head&, Index n, Eligible&& eligible, Key&& key, Position&& position) const {
    wait();
    Best mine;
    for (Index i = lane_; i < n; i += lanes()) {
      if (eligible(i)) mine = better(mine, {i, key(i), position(i)});
    }
    room_.best[at(lane_)] = mine;
    wait();
    Best best;
    for (const Best& other : room_.best) best = better(best, other);
    wait();
    return best.slot;
  }

  template <class Head, class Eligible, class Key>
  Index argmin(const Head& head, Index n, Eligible&& eligible, Key&& key) const {
    return argmin(head, n, eligible, key, [&](Index i) { return head.position(i); });
  }

  template <class Head, class Eligible, class Least, class Key>
  Index argmin_bounded(const Head& head, Index n, Eligible&& eligible, Least&&, Key&& key) const {
    return argmin(head, n, eligible, key);
  }

  template <class Head, class Eligible, class Key, class... Position>
  Index argmax(const Head& head, Index n, Eligible&& eligible, Key&& key,
               Position&&... position) const {
    return argmin(
        head, n, eligible, [&](Index i) { return -key(i); }, position...);
  }

  template <class Head, class Eligible, class Key>
  void smallest(Index k, const Head& head, Index n, Eligible&& eligible, Key&& key,
                std::int32_t* out) const {
    if (k == 1) {
      const Index best = argmin(head, n, eligible, key);
      once([&] { out[0] = static_cast<std::int32_t>(best); });
      return;
    }
    const Index found = collect(head, n, eligible, out);
    sort_lowest(k, out, found, [&](std::int32_t a, std::int32_t b) {
      const float key_a = key(Index{a}), key_b = key(Index{b});
      return key_a < key_b || (key_a == key_b && head.position(Index{a}) < head.position(Index{b}));
    });
  }

  template <class Head, class Wanted>
  Index collect(const Head&, Index n, Wanted&& wanted, std::int32_t* out) const {
    wait();
    std::vector<std::int32_t> mine;
    for (Index i = n * lane_ / lanes(); i < n * (lane_ + 1) / lanes(); ++i) {
      if (wanted(i)) mine.push_back(static_cast<std::int32_t>(i));
    }
    room_.counts[at(lane_)] = static_cast<Index>(mine.size());
    wait();
    Index before = 0, total = 0;
    for (Index lane = 0; lane < lanes(); ++lane) {
      if (lane < lane_) before += room_.counts[at(lane)];
      total += room_.counts[at(lane)];
    }
    std::copy(mine.begin(), mine.end(), out + before);
    wait();
    return total;
  }

  template <class Less>
  void sort(std::int32_t* items, Index n, Less&& less) const {
    sort_lowest(n, items, n, less);
  }

  template <class Head>
  void copy_entries(const Head& head, const std::int32_t* from, const std::int32_t* to,
                    Index n) const {
    for_each(n, [&](Index a) { head.copy_entry(from[a], to[a]); });
  }

  template <class Head, class F>
  void write_key(const Head& head, Index slot, F&& f) const {
    for_each(head.head_dim(), [&](Index j) { head.set_key(slot, j, f(j)); });
  }
  template <class Head, class F>
  void write_value(const Head& head, Index slot, F&& f) const {
    for_each(head.head_dim(), [&](Index j) { head.set_value(slot, j, f(j)); });
  }

  template <int MostRows = 1, class Head>
  void dot(const Head& head, const float* vectors, Index n, float* out, Index rows = 1,
           Index stride = 0) const {
    wait();
    const Index page = head.page_size();
    for (Index first = lane_ * page; first < n; first += lanes() * page) {
      tersekv::key_products<MostRows>(head, first, std::min(first + page, n), vectors, 1.0f, out,
                                      rows, stride);
    }
    wait();
  }

  template <class Head, class F>
  void for_each_square(const Head& head, Index first, Index count, F&& f) const {
    // Each lane its own slots, so that an f which reads what another slot's writes is a race.
    std::vector<float> key(static_cast<std::size_t>(head.head_dim())),
        out(static_cast<std::size_t>(tersekv::padded_dim(first + count)));
    for_each(count, [&](Index i) {
      const Index slot = first + i;
      for (Index j = 0; j < head.head_dim(); ++j) {
        key[static_cast<std::size_t>(j)] = head.key(slot, j);
      }
      const Index block = slot & -tersekv::simd::kMostLanes;
      tersekv::few_key_products(head, block, key.data(), 1.0f, out.data());
      f(slot, out[static_cast<std::size_t>(slot)]);
    });
  }

 private:
  struct Best {
    Index slot = -1;
    float key = 0;
    Index position = 0;
  };
  /// What the lanes of a team share.
  struct Room {
    explicit Room(Index lanes) : barrier(lanes), best(at(lanes)), counts(at(lanes)) {}
    std::barrier<> barrier;
    std::vector<Best> best;
    std::vector<Index> counts;
  };

  ThreadTeam(Room& room, Index lane) : room_(room), lane_(lane) {}

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Index lanes() const { return static_cast<Index>(room_.best.size()); }
  void wait() const { room_.barrier.arrive_and_wait(); }

  /// The lower key, then the lower position, then the lower slot.
  static Best better(const Best& a, const Best& b) {
    if (a.slot < 0 || b.slot < 0) return a.slot < 0 ? b : a;
    if (a.key != b.key) return a.key < b.key ? a : b;
    if (a.position != b.position) return a.position < b.position ? a : b;
    return a.slot < b.slot ? a : b;
  }

  /// The `k` lowest of n items, lowest first, to their front. Every lane sorts a copy of its own
  /// and writes back its share.
  template <class Less>
  void sort_lowest(Index k, std::int32_t* items, Index n, Less&& less) const {
    wait();
    std::vector<std::int32_t> sorted(items, items + n);
    wait();
    std::sort(sorted.begin(), sorted.end(), less);
    for (Index i = lane_; i < k; i += lanes()) items[i] = sorted[at(i)];
    wait();
  }

  Room& room_;
  Index lane_;
};

}  // namespace support
