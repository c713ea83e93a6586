// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory_resource>
#include <vector>

#include "tersekv/config.hpp"
#include "tersekv/simd.hpp"

namespace tersekv::detail {

/// Scratch memory for caches whose calls do not overlap, the layers of a model say: block i is as
/// large as whichever of them needs most of it. Nothing lasts in it from call to call.
class ScratchBlocks {
 public:
  explicit ScratchBlocks(std::pmr::memory_resource* resource) : blocks_(resource) {}

  float* block(Index i) { return reinterpret_cast<float*>(blocks_[at(i)].data()); }
  /// Another number whenever a block may have moved.
  Index generation() const { return generation_; }

  /// Block i holds `floats` numbers at least. Throws std::bad_alloc, and is then as before.
  void reserve(Index i, Index floats) {
    if (at(i) >= blocks_.size()) blocks_.resize(at(i) + 1);
    if (blocks_[at(i)].size() < lines(floats)) resize(i, floats);
  }
  /// Block i holds no more than that many. Throws std::bad_alloc, and is then as before.
  void shrink(Index i, Index floats) {
    if (at(i) < blocks_.size() && blocks_[at(i)].size() > lines(floats)) resize(i, floats);
  }
  /// No more blocks than that.
  void keep(Index blocks) noexcept {
    while (blocks_.size() > at(blocks)) blocks_.pop_back();
  }
  void clear() noexcept { std::pmr::vector<Block>(blocks_.get_allocator()).swap(blocks_); }

  Index bytes() const {
    Index lines = 0;
    for (const Block& block : blocks_) lines += static_cast<Index>(block.capacity());
    return lines * Index{sizeof(CacheLine)};
  }
  Index bookkeeping_bytes() const { return static_cast<Index>(blocks_.capacity() * sizeof(Block)); }

 private:
  /// None of the vectors in a block lies in two of these.
  struct alignas(64) CacheLine {
    float numbers[std::size_t{simd::kMostLanes}];
  };
  using Block = std::pmr::vector<CacheLine>;

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  static std::size_t lines(Index floats) {
    return static_cast<std::size_t>((floats + simd::kMostLanes - 1) / simd::kMostLanes);
  }
  void resize(Index i, Index floats) {
    Block block(lines(floats), blocks_.get_allocator().resource());
    blocks_[at(i)].swap(block);  // of the same resource
    ++generation_;
  }

  std::pmr::vector<Block> blocks_;
  Index generation_ = 0;
};

}  // namespace tersekv::detail
