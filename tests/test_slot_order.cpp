// SPDX-License-Identifier: Apache-2.0

// Slots sorted by a heap: the first of them, in their order, are those that std::sort puts there.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "support/random.hpp"
#include "tersekv/slot_order.hpp"

using namespace tersekv;

TEST_CASE("The first slots are those of the whole order") {
  support::Random random(4711);
  INFO(random);
  int ties = 0, moved = 0;
  for (int round = 0; round < 3000; ++round) {
    const Index n = random.integer(0, round < 2990 ? 40 : 5000), k = random.integer(0, n);
    std::vector<std::int32_t> slots(static_cast<std::size_t>(n));
    std::iota(slots.begin(), slots.end(), 0);
    for (std::size_t i = slots.size(); i > 1; --i) {
      const auto other = random.integer(0, static_cast<std::int64_t>(i) - 1);
      std::swap(slots[i - 1], slots[static_cast<std::size_t>(other)]);
    }
    // Few different scores, so that the slot decides often.
    std::vector<std::int64_t> scores(slots.size());
    for (auto& score : scores) score = random.integer(0, round % 3 == 0 ? 3 : 1000000);
    const auto before = [&](std::int32_t a, std::int32_t b) {
      const auto x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
      if (x == y) ++ties;
      return x != y ? x < y : a < b;
    };
    auto sorted = slots;
    std::sort(sorted.begin(), sorted.end(), before);
    moved += sorted != slots;

    auto first = slots, all = slots;
    detail::first_slots(first.data(), k, n, detail::SlotLess(before));
    REQUIRE(std::equal(first.begin(), first.begin() + k, sorted.begin()));
    REQUIRE(std::is_permutation(first.begin() + k, first.end(), sorted.begin() + k, sorted.end()));
    detail::sort_slots(all.data(), n, detail::SlotLess(before));
    REQUIRE(all == sorted);
  }
  CHECK(ties > 10000);
  CHECK(moved > 2000);
}

TEST_CASE("Sorting takes n log n comparisons at most, whatever the order it begins with") {
  constexpr Index kSlots = 4096, kLog = 12;
  for (const int order : {0, 1, 2, 3}) {
    std::vector<std::int32_t> slots(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    if (order == 1) std::reverse(slots.begin(), slots.end());
    if (order == 2) std::rotate(slots.begin(), slots.begin() + kSlots / 2, slots.end());
    Index comparisons = 0;
    const auto before = [&](std::int32_t a, std::int32_t b) {
      ++comparisons;
      return order == 3 ? a / 1024 < b / 1024 : a < b;
    };
    detail::sort_slots(slots.data(), kSlots, detail::SlotLess(before));
    const Index taken = comparisons;
    CHECK(std::is_sorted(slots.begin(), slots.end(), before));
    CHECK(taken > kSlots);
    CHECK(taken < 2 * kSlots * (kLog + 2));
  }
}

TEST_CASE("The first few slots take n log k comparisons at most") {
  constexpr Index kSlots = 4096, kFew = 16, kLog = 4;
  std::vector<std::int32_t> slots(kSlots);
  std::iota(slots.rbegin(), slots.rend(), 0);  // each comes before all that came before it
  Index comparisons = 0;
  const auto before = [&](std::int32_t a, std::int32_t b) {
    ++comparisons;
    return a < b;
  };
  detail::first_slots(slots.data(), kFew, kSlots, detail::SlotLess(before));
  CHECK(comparisons > kSlots);
  CHECK(comparisons < kSlots * (2 * kLog + 1) + 2 * kFew * (kLog + 2));
  for (std::int32_t i = 0; i < kFew; ++i) CHECK(slots[static_cast<std::size_t>(i)] == i);
}
