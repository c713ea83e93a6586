// SPDX-License-Identifier: Apache-2.0

// Lists on a memory resource, and the tables of pages made of them, against std::vector.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "counting_resource.hpp"
#include "support/random.hpp"
#include "tersekv/list.hpp"
#include "tersekv/page_tables.hpp"

using namespace tersekv;

namespace {

struct alignas(64) Line {
  std::int64_t number = 7;
  bool operator==(const Line&) const = default;
};

template <class T>
bool holds(const detail::List<T>& list, const std::vector<T>& expected) {
  return list.size() == std::ssize(expected) &&
         std::equal(list.begin(), list.end(), expected.begin(), expected.end());
}

}  // namespace

TEST_CASE("A list holds what a vector holds, and where memory is refused what it held") {
  CountingResource resource;
  support::Random random(99);
  INFO(random);
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    detail::List<Line> list(&resource, random.integer(0, 3));
    std::vector<Line> expected(static_cast<std::size_t>(list.size()));
    REQUIRE(holds(list, expected));  // as Line says, not zeros
    for (int step = 0; step < 60; ++step) {
      const auto what = random.integer(0, 9);
      if (random.chance(0.1)) resource.fail_after(0);
      try {
        if (what < 5) {
          list.push_back({step});
          expected.push_back({step});
        } else if (what == 5 && !expected.empty()) {
          list.push_back(list[0]);  // which may move meanwhile
          expected.push_back(expected[0]);
        } else if (what == 6) {
          list.reserve(list.size() + random.integer(0, 9));
        } else if (what == 7 && !expected.empty()) {
          REQUIRE(list.pop_back() == expected.back());
          expected.pop_back();
        } else if (what == 8 && random.chance(0.2)) {
          list.clear();
          expected.clear();
          REQUIRE(list.bytes() == 0);
        } else if (what == 9) {
          const Index size = random.integer(0, list.size());
          list.truncate(size);
          expected.resize(static_cast<std::size_t>(size));
        }
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      resource.fail_after(CountingResource::kNever);
      REQUIRE(holds(list, expected));
      REQUIRE(list.capacity() >= list.size());
      REQUIRE(resource.bytes() == list.bytes());
      REQUIRE(reinterpret_cast<std::uintptr_t>(list.data()) % alignof(Line) == 0);
    }
    const detail::List<Line> taken = std::move(list);
    REQUIRE(holds(taken, expected));
    REQUIRE(list.size() + list.capacity() == 0);  // NOLINT: what a move leaves
    REQUIRE(resource.bytes() == taken.bytes());
  }
  CHECK(refused > 50);
  resource.fail_after(0);
  CHECK_THROWS_AS(detail::List<Line>(&resource, 3), std::bad_alloc);
  CHECK(resource.bytes() == 0);
  CHECK(resource.sound());
}

TEST_CASE("Tables of pages grow together, and where memory is refused stay as they were") {
  CountingResource resource;
  support::Random random(5);
  INFO(random);
  constexpr Index kHeads = 3;
  std::vector<std::byte> places(1000);
  int refused = 0;
  {
    detail::PageTables tables(&resource, kHeads);
    std::vector<std::vector<std::byte*>> pages(kHeads), columns(kHeads);
    for (int step = 0; step < 3000; ++step) {
      const Index head = random.integer(0, kHeads - 1);
      const auto h = static_cast<std::size_t>(head);
      if (random.chance(0.2)) resource.fail_after(0);
      try {
        if (random.chance(0.55)) {
          tables.reserve(head, tables.size(head) + random.integer(1, 4));
          std::byte* const page = places.data() + random.integer(0, 999);
          tables.push_back(head, page, page + 1);
          pages[h].push_back(page);
          columns[h].push_back(page + 1);
        } else if (!pages[h].empty()) {
          REQUIRE(tables.pop_back(head) == pages[h].back());
          pages[h].pop_back();
          columns[h].pop_back();
        }
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      resource.fail_after(CountingResource::kNever);
      REQUIRE(tables.size(head) == std::ssize(pages[h]));
      REQUIRE(std::equal(pages[h].begin(), pages[h].end(), tables.pages(head)));
      REQUIRE(std::equal(columns[h].begin(), columns[h].end(), tables.columns(head)));
      REQUIRE(resource.bytes() == tables.bytes());
    }
    const detail::PageTables taken = std::move(tables);
    CHECK(taken.size(1) == std::ssize(pages[1]));
    CHECK(resource.bytes() == taken.bytes());
  }
  CHECK(refused > 3);
  CHECK(resource.bytes() == 0);
  CHECK(resource.sound());
}
