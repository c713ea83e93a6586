// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory_resource>
#include <vector>

#include "large_memory.hpp"

namespace llama {

/// Memory for blocks of one size, the pages of caches, cut from large pages of the system; each of
/// these goes back as soon as none of its blocks is in use. What has another size comes from the
/// default resource.
class BlockMemory final : public std::pmr::memory_resource {
 public:
  /// The size of blocks, once; what was there before stays where it is. Only blocks of 4 KiB to a
  /// sixteenth of a large page are cut from these.
  void set_block_bytes(std::size_t bytes) { block_ = bytes; }

  /// Large pages held.
  std::size_t large_pages() const { return chunks_.size(); }

 private:
  static constexpr std::size_t kAlignment = 64;  // of every block

  struct Chunk {
    LargeMemory memory{LargeMemory::kPage};
    std::vector<std::byte*> idle;  // blocks
  };

  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
  bool cuts(std::size_t bytes) const;
  std::size_t blocks_per_chunk() const { return LargeMemory::kPage / block_; }

  std::size_t block_ = 0;
  std::map<std::byte*, Chunk> chunks_;  // by their start
  Chunk* current_ = nullptr;            // where the latest block came from
};

}  // namespace llama
