// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <vector>

#include "tersekv/config.hpp"

namespace tersekv::detail {

/// Scratch memory for caches whose calls do not overlap, the layers of a model say: block i is as
/// large as whichever of them needs most of it. Nothing lasts in it from call to call.
class ScratchBlocks {
 public:
  explicit ScratchBlocks(std::pmr::memory_resource* resource) : blocks_(resource) {}
  ScratchBlocks(const ScratchBlocks&) = delete;
  ScratchBlocks& operator=(const ScratchBlocks&) = delete;
  ~ScratchBlocks() { keep(0); }

  float* block(Index i) { return static_cast<float*>(blocks_[at(i)].memory); }
  /// Another number whenever a block may have moved.
  Index generation() const { return generation_; }

  /// Block i holds `floats` numbers at least. Throws std::bad_alloc, and is then as before.
  void reserve(Index i, Index floats) {
    while (at(i) >= blocks_.size()) blocks_.push_back({});
    if (blocks_[at(i)].bytes < bytes_for(floats)) resize(blocks_[at(i)], bytes_for(floats));
  }
  /// Block i holds no more than that many. Throws std::bad_alloc, and is then as before.
  void shrink(Index i, Index floats) {
    if (at(i) >= blocks_.size()) return;
    if (blocks_[at(i)].bytes > bytes_for(floats)) resize(blocks_[at(i)], bytes_for(floats));
  }
  /// No more blocks than that.
  void keep(Index blocks) noexcept {
    for (; blocks_.size() > at(blocks); blocks_.pop_back()) release(blocks_.back());
  }
  void clear() noexcept {
    keep(0);
    std::pmr::vector<Block>(resource()).swap(blocks_);
  }

  Index bytes() const {
    Index sum = 0;
    for (const Block& block : blocks_) sum += block.bytes;
    return sum;
  }
  Index bookkeeping_bytes() const { return static_cast<Index>(blocks_.capacity() * sizeof(Block)); }

 private:
  // No vector: one of vectors takes a while to compile.
  struct Block {
    void* memory = nullptr;
    Index bytes = 0;
  };
  static constexpr Index kLine = 64;  // none of the vectors in a block lies in two of these

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  static Index bytes_for(Index floats) { return (4 * floats + kLine - 1) / kLine * kLine; }
  std::pmr::memory_resource* resource() const { return blocks_.get_allocator().resource(); }

  void release(const Block& block) noexcept {
    if (block.bytes > 0) resource()->deallocate(block.memory, at(block.bytes), at(kLine));
  }
  void resize(Block& block, Index bytes) {
    Block other;
    if (bytes > 0) {
      other = {resource()->allocate(at(bytes), at(kLine)), bytes};
      std::memset(other.memory, 0, at(bytes));
    }
    release(block);
    block = other;
    ++generation_;
  }

  std::pmr::vector<Block> blocks_;
  Index generation_ = 0;
};

}  // namespace tersekv::detail
