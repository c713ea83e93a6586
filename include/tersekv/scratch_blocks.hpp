// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>

#include "tersekv/config.hpp"
#include "tersekv/list.hpp"

namespace tersekv::detail {

/// Scratch memory for caches whose calls do not overlap, the layers of a model say: block i is as
/// large as whichever of them needs most of it. Nothing lasts in it from call to call.
class ScratchBlocks {
 public:
  explicit ScratchBlocks(std::pmr::memory_resource* resource) : blocks_(resource) {}
  ScratchBlocks(const ScratchBlocks&) = delete;
  ScratchBlocks& operator=(const ScratchBlocks&) = delete;
  ~ScratchBlocks() { keep(0); }

  float* block(Index i) { return static_cast<float*>(blocks_[i].memory); }
  /// Another number whenever a block may have moved.
  Index generation() const { return generation_; }

  /// Block i holds `floats` numbers at least. Throws std::bad_alloc, and is then as before.
  void reserve(Index i, Index floats) {
    while (i >= blocks_.size()) blocks_.push_back({});
    if (blocks_[i].bytes < bytes_for(floats)) resize(blocks_[i], bytes_for(floats));
  }
  /// Block i holds no more than that many. Throws std::bad_alloc, and is then as before.
  void shrink(Index i, Index floats) {
    if (i >= blocks_.size()) return;
    if (blocks_[i].bytes > bytes_for(floats)) resize(blocks_[i], bytes_for(floats));
  }
  /// No more blocks than that.
  void keep(Index blocks) noexcept {
    while (blocks_.size() > blocks) release(blocks_.pop_back());
  }
  void clear() noexcept {
    keep(0);
    blocks_.clear();
  }

  Index bytes() const {
    Index sum = 0;
    for (const Block& block : blocks_) sum += block.bytes;
    return sum;
  }
  Index bookkeeping_bytes() const { return blocks_.bytes(); }

 private:
  struct Block {
    void* memory = nullptr;
    Index bytes = 0;
  };
  static constexpr Index kLine = 64;  // none of the vectors in a block lies in two of these

  static Index bytes_for(Index floats) { return (4 * floats + kLine - 1) / kLine * kLine; }

  void release(const Block& block) noexcept {
    if (block.bytes > 0)
      blocks_.resource()->deallocate(block.memory, static_cast<std::size_t>(block.bytes), kLine);
  }
  void resize(Block& block, Index bytes) {
    Block other;
    if (bytes > 0) {
      other = {blocks_.resource()->allocate(static_cast<std::size_t>(bytes), kLine), bytes};
      std::memset(other.memory, 0, static_cast<std::size_t>(bytes));
    }
    release(block);
    block = other;
    ++generation_;
  }

  List<Block> blocks_;
  Index generation_ = 0;
};

}  // namespace tersekv::detail
