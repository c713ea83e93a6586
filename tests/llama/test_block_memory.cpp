// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "block_memory.hpp"

namespace {

using llama::BlockMemory;
using llama::LargeMemory;

constexpr std::size_t kBlock = 16640;

}  // namespace

TEST_CASE("blocks are apart, aligned, and keep what is written to them") {
  BlockMemory memory;
  memory.set_block_bytes(kBlock);
  std::mt19937 random(1);
  std::map<std::byte*, unsigned char> live;  // with what it is filled with
  for (int step = 0; step < 3000; ++step) {
    if (live.empty() || random() % 3 != 0) {
      auto* block = static_cast<std::byte*>(memory.allocate(kBlock, 64));
      REQUIRE(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
      const auto fill = static_cast<unsigned char>(random() % 256);
      std::memset(block, fill, kBlock);
      REQUIRE(live.emplace(block, fill).second);
    } else {
      const auto leaving =
          std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      const std::vector<std::byte> expected(kBlock, static_cast<std::byte>(leaving->second));
      REQUIRE(std::memcmp(leaving->first, expected.data(), kBlock) == 0);
      memory.deallocate(leaving->first, kBlock, 64);
      live.erase(leaving);
    }
  }
  for (const auto& [block, fill] : live) memory.deallocate(block, kBlock, 64);
  CHECK(memory.large_pages() == 0);
}

TEST_CASE("memory of a block's size that came before the size was set goes back where it is from") {
  BlockMemory memory;
  void* before = memory.allocate(kBlock, 64);
  memory.set_block_bytes(kBlock);
  void* block = memory.allocate(kBlock, 64);
  CHECK(memory.large_pages() == 1);
  memory.deallocate(before, kBlock, 64);
  CHECK(memory.large_pages() == 1);
  memory.deallocate(block, kBlock, 64);
  CHECK(memory.large_pages() == 0);
  before = memory.allocate(kBlock - 64, 64);
  memory.set_block_bytes(kBlock - 64);
  memory.deallocate(before, kBlock - 64, 64);  // while there are no large pages at all
  CHECK(memory.large_pages() == 0);
}

TEST_CASE("large pages are filled one after the other, and go back when they are empty") {
  BlockMemory memory;
  memory.set_block_bytes(kBlock);
  const std::size_t per_page = LargeMemory::kPage / kBlock;
  std::vector<std::byte*> blocks;
  for (std::size_t i = 0; i < 3 * per_page; ++i) {
    blocks.push_back(static_cast<std::byte*>(memory.allocate(kBlock, 64)));
    CHECK(memory.large_pages() == i / per_page + 1);
    if (i % per_page != 0) CHECK(blocks[i] == blocks[i - 1] + kBlock);
  }
  memory.deallocate(blocks[0], kBlock, 64);
  CHECK(memory.allocate(kBlock, 64) == blocks[0]);
  for (std::size_t i = per_page; i < 2 * per_page; ++i) memory.deallocate(blocks[i], kBlock, 64);
  CHECK(memory.large_pages() == 2);
  for (std::size_t i = 0; i < per_page; ++i) memory.deallocate(blocks[i], kBlock, 64);
  for (std::size_t i = 2 * per_page; i < 3 * per_page; ++i)
    memory.deallocate(blocks[i], kBlock, 64);
  CHECK(memory.large_pages() == 0);
}

TEST_CASE("other sizes, and blocks too large or too small, take no large page") {
  for (const std::size_t block : {std::size_t{2048}, std::size_t{4100}, LargeMemory::kPage / 8}) {
    BlockMemory memory;
    memory.set_block_bytes(block);
    for (const std::size_t bytes : {block, block + 64, std::size_t{1}}) {
      void* at = memory.allocate(bytes, 64);
      std::memset(at, 1, bytes);
      CHECK(memory.large_pages() == 0);
      memory.deallocate(at, bytes, 64);
    }
  }
}
