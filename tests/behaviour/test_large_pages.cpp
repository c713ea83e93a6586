// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "conformance.hpp"
#include "counting_resource.hpp"
#include "tersekv/tersekv.hpp"

// Pages in blocks that fill the system's large pages: `PageMemory::large`.

namespace {

using namespace conformance;
using tersekv::PageMemory;
using tersekv::PagePool;

/// All of it comes back, as it went, when pools are gone.
struct Resource : CountingResource {
  ~Resource() override {
    CHECK(sound());
    CHECK(bytes() == 0);
  }
};

constexpr Index kLarge = 2 << 20, kPage = 16640, kPerBlock = kLarge / kPage;

std::vector<std::byte*> take(PagePool& pool, Index pages) {
  std::vector<std::byte*> taken;
  for (Index i = 0; i < pages; ++i) taken.push_back(pool.take());
  return taken;
}
void give(PagePool& pool, const std::vector<std::byte*>& pages, Index first, Index last) {
  for (Index i = first; i < last; ++i) pool.give(pages[static_cast<std::size_t>(i)]);
}

}  // namespace

TEST_CASE("large pages: a block's pages are neighbours, and it lies in one large page") {
  Resource resource;
  PagePool pool(&resource, PageMemory::large);
  CHECK(pool.bytes() == resource.bytes());
  pool.set_page_bytes(kPage);
  const auto pages = take(pool, 3 * kPerBlock);
  CHECK(pool.pages() == 3 * kPerBlock);
  CHECK(pool.bytes() == resource.bytes());
  CHECK(pool.idle_bytes() == resource.bytes() - 3 * kPerBlock * kPage);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (i % kPerBlock == 0) {
      CHECK(reinterpret_cast<std::uintptr_t>(pages[i]) % kLarge == 0);
    } else {
      CHECK(pages[i] == pages[i - 1] + kPage);
    }
    std::memset(pages[i], 1, kPage);  // is ours
  }
  give(pool, pages, 0, 3 * kPerBlock);
  pool.trim();
  CHECK(pool.pages() == 0);
  CHECK(pool.bytes() == resource.bytes());
}

TEST_CASE("large pages: how many bytes pages would take is known before they are taken") {
  PagePool single, large(std::pmr::get_default_resource(), PageMemory::large);
  CHECK(large.bytes_for(3) == 0);  // of no size yet
  single.set_page_bytes(kPage);
  large.set_page_bytes(kPage);
  CHECK(single.bytes_for(3) == 3 * kPage);
  CHECK(large.bytes_for(0) == 0);
  CHECK(large.bytes_for(1) == kLarge);
  CHECK(large.bytes_for(kPerBlock) == kLarge);
  CHECK(large.bytes_for(kPerBlock + 1) == 2 * kLarge);
}

TEST_CASE("large pages: a block goes back when all of it is idle, and not before") {
  Resource resource;
  PagePool pool(&resource, PageMemory::large);
  pool.set_page_bytes(kPage);
  auto pages = take(pool, 3 * kPerBlock);
  // The blocks in order of address, up or down.
  std::sort(pages.begin(), pages.end());
  if (GENERATE(false, true)) std::reverse(pages.begin(), pages.end());
  std::swap(pages[1], pages[kPerBlock + 1]);  // a page of each of two blocks among the other's
  give(pool, pages, 0, kPerBlock);
  pool.trim();
  CHECK(pool.pages() == 3 * kPerBlock);
  CHECK(pool.idle_pages() == kPerBlock);
  give(pool, pages, kPerBlock + 1, kPerBlock + 2);  // the first block's last
  pool.trim();
  CHECK(pool.pages() == 2 * kPerBlock);
  CHECK(pool.idle_pages() == 1);
  CHECK(pool.bytes() == resource.bytes());
  CHECK(pool.take() == pages[1]);
  pool.give(pages[1]);

  give(pool, pages, 2 * kPerBlock, 2 * kPerBlock + 10);
  give(pool, pages, kPerBlock + 10, 2 * kPerBlock);
  pool.trim();  // both blocks are still in use
  CHECK(pool.pages() == 2 * kPerBlock);
  auto left = take(pool, pool.idle_pages());
  CHECK(std::is_sorted(left.begin(), left.end()));  // neighbours are taken one after the other
  give(pool, left, 0, static_cast<Index>(left.size()));
  give(pool, pages, 2 * kPerBlock + 10, 3 * kPerBlock);
  pool.give(pages[kPerBlock]);
  give(pool, pages, kPerBlock + 2, kPerBlock + 10);
  pool.trim();
  CHECK(pool.bytes() == resource.bytes());
  CHECK(pool.pages() == 0);
}

TEST_CASE("large pages: what is too large for several in a block comes singly") {
  Resource resource;
  PagePool pool(&resource, PageMemory::large);
  constexpr Index kMost = kLarge / 8;
  pool.set_page_bytes(kMost + 64);
  const auto pages = take(pool, 2);
  CHECK(pool.pages() == 2);
  CHECK(pool.idle_bytes() == pool.bookkeeping_bytes());
  CHECK(pool.bytes() == resource.bytes());
  pool.give(pages[0]);
  pool.trim();
  CHECK(pool.pages() == 1);
  pool.give(pages[1]);
  PagePool of_most(&resource, PageMemory::large);
  of_most.set_page_bytes(kMost);
  of_most.give(of_most.take());
  CHECK(of_most.pages() == 8);
}

TEST_CASE("large pages: a block that is not to be had leaves the pool as it was") {
  Resource resource;
  PagePool pool(&resource, PageMemory::large);
  pool.set_page_bytes(kPage);
  std::vector<std::byte*> pages;
  for (const Index blocks : {0, 1, 2, 3}) {
    REQUIRE(pool.idle_pages() == 0);
    for (std::int64_t successes = 0; pool.pages() == blocks * kPerBlock; ++successes) {
      resource.fail_after(successes);
      try {
        pages.push_back(pool.take());
        CHECK(pool.pages() == (blocks + 1) * kPerBlock);
      } catch (const std::bad_alloc&) {
        CHECK(pool.idle_pages() == 0);
      }
      CHECK(pool.bytes() == resource.bytes());
    }
    resource.fail_after(CountingResource::kNever);
    const auto rest = take(pool, pool.idle_pages());
    pages.insert(pages.end(), rest.begin(), rest.end());
  }
  give(pool, pages, 0, static_cast<Index>(pages.size()));
}

TEST_CASE("pages: each has columns of its own, behind what else the pages of its block hold") {
  const auto memory = GENERATE(PageMemory::single, PageMemory::large);
  constexpr Index kColumns = 3, kColumn = 256, kApart = kColumns * kColumn;
  Resource resource;
  PagePool pool(&resource, memory);
  pool.set_page_bytes(kPage, kColumns, kColumn);
  const Index per_block = memory == PageMemory::large ? kPerBlock : 1;
  REQUIRE(pool.block_pages() == per_block);
  const auto pages = take(pool, 2 * per_block);
  // Each piece is written by its page, and all are as written when the others have been.
  const auto pieces = [&](std::byte* page, auto&& f) {
    f(page, kPage - kApart);
    for (Index c = 0; c < kColumns; ++c) {
      f(pool.columns_of(page) + c * per_block * kColumn, kColumn);
    }
  };
  int mark = 0;
  for (std::byte* page : pages) {
    ++mark;
    pieces(page, [&](std::byte* piece, Index bytes) {
      CHECK(reinterpret_cast<std::uintptr_t>(piece) % 64 == 0);
      std::memset(piece, mark, static_cast<std::size_t>(bytes));
    });
  }
  CHECK(resource.sound());
  mark = 0;
  for (std::byte* page : pages) {
    ++mark;
    pieces(page, [&](const std::byte* piece, Index bytes) {
      CHECK(std::all_of(piece, piece + bytes, [&](std::byte b) { return b == std::byte(mark); }));
    });
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Index in_block = static_cast<Index>(i) % per_block;
    const std::byte* first = pages[i - static_cast<std::size_t>(in_block)];
    CHECK(pages[i] == first + in_block * (kPage - kApart));
    CHECK(pool.columns_of(pages[i]) == first + per_block * (kPage - kApart) + in_block * kColumn);
  }
  // As many bytes, otherwise divided.
  CHECK_THROWS_AS(pool.set_page_bytes(kPage, 2, kColumn), std::invalid_argument);
  CHECK_THROWS_AS(pool.set_page_bytes(kPage, 6, kColumn / 2), std::invalid_argument);
  CHECK_THROWS_AS(pool.set_page_bytes(kPage), std::invalid_argument);
  pool.set_page_bytes(kPage, kColumns, kColumn);
  give(pool, pages, 0, 2 * per_block);
}

TEST_CASE("large pages: results are those of pages that come singly") {
  FOR_EACH_POLICY(policy) {
    PagePool pool(std::pmr::get_default_resource(), PageMemory::large);
    const CacheConfig config = small_config(policy, 2);
    const auto large = policy.make(config, {.pool = &pool}), single = policy.make(config, {});
    support::Random random(73);
    for (int i = 0; i < 20; ++i) {
      Tokens one(random, config, i % 7 == 0 ? 9 : 1);
      Tokens other = one;
      extend(*large, one.all());
      extend(*single, other.all());
      REQUIRE(one.out == other.out);
    }
  }
}

TEST_CASE("large pages: clones go there and back") {
  FOR_EACH_POLICY(policy) {
    PagePool pool(std::pmr::get_default_resource(), PageMemory::large), other;
    const CacheConfig config = small_config(policy, 2);
    const auto single = policy.make(config, {});
    support::Random random(74);
    for (int i = 0; i < 5; ++i) {
      Tokens some(random, config, 9);
      extend(*single, some.all());
    }
    const auto large = single->clone(pool), beside = large->clone(), back = large->clone(other);
    for (int i = 0; i < 10; ++i) {
      Tokens one(random, config, 1);
      const auto rows_of = [&](AnyCache& cache) {
        Tokens copy = one;
        extend(cache, copy.all());
        return copy.out;
      };
      const auto expected = rows_of(*single);
      REQUIRE(rows_of(*large) == expected);
      REQUIRE(rows_of(*beside) == expected);
      REQUIRE(rows_of(*back) == expected);
    }
  }
}
