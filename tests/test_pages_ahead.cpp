// SPDX-License-Identifier: Apache-2.0
// What attention asks for ahead of reading it: all of it, and nothing twice.
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <map>
#include <memory_resource>
#include <vector>

#include "bare_head.hpp"
#include "tersekv/pages_ahead.hpp"
#include "tersekv/tersekv.hpp"

using namespace tersekv;
using detail::AskedLines;
using support::BareHead;

namespace {

/// How often each line is asked for.
using Lines = std::map<const std::byte*, int>;

/// Those asked for by who reads `bytes` bytes meanwhile.
void ask(const AskedLines& asked, Index bytes, Lines& lines) {
  for (Index i = 0; i < bytes / AskedLines::kBytes; ++i) {
    for (int place = 0; place < AskedLines::kPlaces; ++place) ++lines[asked.line(place, i)];
  }
}
/// Lines of the `bytes` bytes from p on that were asked for; none may have been asked for twice.
Index asked_of(const Lines& lines, const void* p, Index bytes) {
  const auto* first = static_cast<const std::byte*>(p);
  Index count = 0;
  for (Index at = 0; at < bytes; at += AskedLines::kLine) {
    const auto found = lines.find(first + at);
    if (found == lines.end()) continue;
    REQUIRE(found->second == 1);
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("lines of four quarters are all lines") {
  const std::vector<std::byte> memory(8192);
  Lines lines;
  const auto asked = AskedLines::of_quarters(memory.data(), 8192);
  ask(asked, 4096, lines);
  CHECK(asked_of(lines, memory.data(), 8192) == 64);
  ask(asked.after(4096), 4096, lines);
  CHECK(asked_of(lines, memory.data(), 8192) == 128);
  CHECK(lines.size() == 128);
}

namespace {

template <class T, class PolicyType>
void check_pages(const PolicyType& policy, Index n, Index page_size) {
  const Index dim = 64, row = dim * Index{sizeof(T)}, keys_bytes = page_size * row;
  BareHead<PolicyType, T> bare(policy, {.head_dim = dim, .scale = 1.0f}, n, n, page_size);
  const auto head = bare.head();
  const detail::PagesAhead ahead(head, n, false), of_keys(head, n, true);
  const auto* keys = reinterpret_cast<const std::byte*>(head.key_page(0));
  const Index to_values = reinterpret_cast<const std::byte*>(head.value_page(0)) - keys;
  const Index bytes = to_values + keys_bytes;
  const Index first = detail::asks_in_fours(n, bytes) ? 4 : 1;  // page that others ask for
  // Attention goes on block by block.
  const Index block = block_entries(page_size), read = block * row;
  Lines lines;
  for (Index start = 0; start < 8 * page_size; start += block) {
    ask(ahead.with_keys(start), read, lines);
    if (start % page_size == 0) {
      ask(ahead.with_keys(start).after(keys_bytes), to_values - keys_bytes, lines);
    }
    ask(ahead.with_values(start), read, lines);
  }
  for (Index page = 0; page < 8 + first; ++page) {
    CAPTURE(n, page, bytes);
    const Index asked = asked_of(lines, head.key_page(page), bytes);
    // Fours of lines that no whole step is left for are not asked for.
    CHECK(asked >= (page < first ? 0 : bytes / AskedLines::kLine - 12));
    CHECK(asked <= (page < first ? 0 : bytes / AskedLines::kLine + 1));
  }
  // Who reads keys alone asks for them alone.
  lines.clear();
  for (Index start = 0; start < 8 * page_size; start += block) {
    ask(of_keys.with_keys(start), read, lines);
  }
  for (Index page = first; page < 8 + first; ++page) {
    const std::byte* at = reinterpret_cast<const std::byte*>(head.key_page(page));
    CHECK(asked_of(lines, at, keys_bytes) == keys_bytes / AskedLines::kLine);
    CHECK(asked_of(lines, at + keys_bytes, bytes - keys_bytes) == 0);
  }
  // Beyond the last page there is nothing to ask for.
  const Index last_index = head.page_index(n - 1);
  const auto* last = reinterpret_cast<const std::byte*>(head.key_page(last_index));
  for (int place = 0; place < AskedLines::kPlaces; ++place) {
    const std::byte* line = ahead.with_keys(n - 1).line(place, 0);
    CHECK(line >= last);
    CHECK(line < last + bytes);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("pages are asked for whole, and once, by those before them", "", float, Half,
                   BFloat16, Int8) {
  for (const Index page_size : {64, 512}) {
    for (const Index n : {12 * page_size, detail::kMemoryEntries}) {
      check_pages<TestType>(Full{}, n, page_size);
      check_pages<TestType>(make_zsmerge({}), n, page_size);  // weights before the values
    }
  }
}

TEST_CASE("lines are asked for of four pages from memory, and where quarters are too near") {
  CHECK(detail::asks_in_fours(16384, 1 << 20));
  CHECK(!detail::asks_in_fours(16383, 16384));
  CHECK(detail::asks_in_fours(16383, 16383) == (simd::kZen == 4));
}

TEST_CASE("on a Skylake only many floats are far, read by several rows") {
  for (const Index rows : {1, 2, 4}) {
    const bool floats = !simd::kSkylake || rows > 1;
    CHECK(detail::is_far<float, float>(4097, 64, 64, rows) == floats);
    CHECK(detail::is_far<float, Int8>(1 << 17, 128, 64, rows) == floats);
    CHECK(detail::is_far<float, float>(4096, 64, 64, rows) == !simd::kSkylake);
    CHECK(detail::is_far<Half, Half>(1 << 17, 128, 64, rows) == !simd::kSkylake);
    CHECK(detail::is_far<Int8, Int8>(1 << 17, 128, 64, rows) == !simd::kSkylake);
  }
}

TEST_CASE("elsewhere heads are far from so many entries on, or bytes where that was timed") {
  if (simd::kSkylake) return;
  CHECK(detail::is_far<Half, Half>(2048, 1, 16, 4));
  CHECK(!detail::is_far<Half, Half>(2047, 32, 64, 4));
  constexpr bool zen4 = simd::kZen == 4 && simd::kLanes == 16;
  for (const Index rows : {1, 2, 4}) {
    const bool apart = simd::kAsksApart && rows > 1, by_bytes = apart || (zen4 && rows == 1);
    CHECK(detail::is_far<Half, Half>(2047, 33, 64, rows) == by_bytes);
    CHECK(detail::is_far<Half, Half>(512, 128, 256, rows) == by_bytes);
    CHECK(detail::is_far<Half, Int8>(2047, 43, 64, rows) == by_bytes);
    CHECK(detail::is_far<Int8, Half>(2047, 43, 64, rows) == by_bytes);
    CHECK(detail::is_far<Int8, Int8>(2047, 65, 64, rows) == (apart || zen4));
    const bool floats = simd::kAsksApart || (zen4 && rows == 1);
    CHECK(detail::is_far<float, float>(2047, 17, 64, rows) == floats);
    CHECK(detail::is_far<float, Half>(2047, 22, 64, rows) == floats);
    CHECK(detail::is_far<Half, float>(2047, 22, 64, rows) == floats);
    CHECK(!detail::is_far<float, float>(2047, 16, 64, rows));
    CHECK(!detail::is_far<Int8, Int8>(2047, 64, 64, rows));
    CHECK(!detail::is_far<Half, Half>(512, 128, 32, rows));
  }
}

TEST_CASE("keys and values are asked for in lines apart only if both are") {
  CHECK(!AskedLines().any());
  const int place = 0;
  CHECK(AskedLines(&place).any());
  for (const Index rows : {1, 2, 3, 4}) {
    const auto apart = [&]<class Key, class Value>() {
      return detail::ask_of_both<Key, Value>(rows, true) == simd::Ask::apart;
    };
    const bool bytes = apart.operator()<Int8, Int8>(), halves = apart.operator()<Half, Half>();
    CHECK(halves == (simd::kAsksApart && rows > 1));
    CHECK(bytes == ((simd::kAsksApart && rows > 1) || (simd::kZen == 4 && rows > 2)));
    CHECK(apart.operator()<Int8, Half>() == halves);
    CHECK(apart.operator()<Half, Int8>() == (halves && bytes));
  }
}

TEST_CASE("what is read first of a head is its pages' first bytes, and no more than is wanted") {
  std::vector<std::byte> memory(3 * 8192);
  const std::vector<std::byte*> pages = {&memory[8192], &memory[0], &memory[16384]};
  struct Part {
    const std::byte* at;
    Index bytes;
    bool operator==(const Part&) const = default;
  };
  const auto first_bytes = [](PageTable table, Index bytes, Index of_page) {
    std::vector<Part> parts;
    detail::for_first_bytes(table, bytes, of_page, [&](const std::byte* at, Index n) {
      parts.push_back({at, n});
    });
    return parts;
  };
  CHECK(first_bytes(pages, 4096, 4096) == std::vector<Part>{{pages[0], 4096}});
  CHECK(first_bytes(pages, 5000, 4096) == std::vector<Part>{{pages[0], 4096}, {pages[1], 904}});
  CHECK(first_bytes(pages, 5000, 8192) == std::vector<Part>{{pages[0], 5000}});
  CHECK(first_bytes(pages, 50000, 4096).size() == 3);
  CHECK(first_bytes(pages, 0, 4096).empty());
  CHECK(first_bytes({}, 4096, 4096).empty());
}

TEST_CASE("a store's pages are those of its heads, in order") {
  detail::HeadStore<float, float> store(2, PageLayout::of<float, float>(64, 16, false, 0, 0),
                                        nullptr, std::pmr::get_default_resource());
  store.reserve(1, 100);
  CHECK(store.pages(0).empty());
  REQUIRE(store.pages(1).size() == 2);
  CHECK(store.pages(1)[1] == store.page(1, 1));
}

TEST_CASE("one tile holds the beginning of the last block's worth of entries") {
  for (const Index block : {16, 64, 256}) {
    for (const Index tile : {block, Index{256}}) {
      for (const Index visible : {1, 15, 64, 65, 512, 513, 2047}) {
        Index holding = 0;
        for (Index start = 0; start < visible; start += tile) {
          const Index entries = std::min(tile, visible - start);
          if (!detail::holds_last_block(start, entries, visible, block)) continue;
          ++holding;
          CHECK(visible - start >= std::min(block, visible));
          CHECK(visible - start - entries < block);
        }
        CHECK(holding == 1);
      }
    }
  }
}
