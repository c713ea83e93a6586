// SPDX-License-Identifier: Apache-2.0
#include "block_memory.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace llama {

bool BlockMemory::cuts(std::size_t bytes) const {
  return bytes == block_ && bytes % kAlignment == 0 && bytes >= 4096 &&
         bytes <= LargeMemory::kPage / 16;
}

void* BlockMemory::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (!cuts(bytes)) return std::pmr::get_default_resource()->allocate(bytes, alignment);
  if (current_ == nullptr || current_->idle.empty()) {
    const auto found =
        std::ranges::find_if(chunks_, [](const auto& chunk) { return !chunk.second.idle.empty(); });
    if (found != chunks_.end()) {
      current_ = &found->second;
    } else {
      Chunk chunk;
      // From the end, as the last one is the first to be taken.
      for (std::size_t i = blocks_per_chunk(); i-- > 0;) {
        chunk.idle.push_back(chunk.memory.data() + i * block_);
      }
      std::byte* start = chunk.memory.data();
      current_ = &chunks_.emplace(start, std::move(chunk)).first->second;
    }
  }
  std::byte* block = current_->idle.back();
  current_->idle.pop_back();
  return block;
}

void BlockMemory::do_deallocate(void* block, std::size_t bytes, std::size_t alignment) {
  const auto after = chunks_.upper_bound(static_cast<std::byte*>(block));
  // Blocks of this size that came before the size was set are not from here.
  if (!cuts(bytes) || after == chunks_.begin() ||
      static_cast<std::byte*>(block) >= std::prev(after)->first + LargeMemory::kPage) {
    return std::pmr::get_default_resource()->deallocate(block, bytes, alignment);
  }
  const auto found = std::prev(after);
  Chunk& chunk = found->second;
  chunk.idle.push_back(static_cast<std::byte*>(block));  // has room: it was there before
  if (chunk.idle.size() < blocks_per_chunk()) return;
  if (current_ == &chunk) current_ = nullptr;
  chunks_.erase(found);
}

}  // namespace llama
