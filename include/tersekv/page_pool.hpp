// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>

#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/large_pages.hpp"
#include "tersekv/list.hpp"
#include "tersekv/scratch_blocks.hpp"

namespace tersekv {

/// How a pool's pages come from its memory resource.
enum class PageMemory {
  single,  ///< each by itself: no more than caches need, and idle ones go back one by one
  large,  ///< in blocks that fill one of the system's large pages, 2 MiB; Linux is asked for these.
          ///< A block goes back when all of it is idle, and whatever the resource then makes of it
          ///< may stay in large pages. Attention over what is in memory is faster: processors look
          ///< ahead, and find addresses, by the system's pages. Pages of more than 256 KiB come
          ///< singly
};

/// Fixed-size pages for the heads of one or many caches. A head that shrinks hands its pages back
/// here at once, and the next head that grows, of any layer or sequence, gets them. `trim()` gives
/// idle pages, or blocks of them, back to the memory resource. The caches' calls work in the same
/// scratch memory, as much as the longest head needs, and find it in the processor's caches.
///
/// All caches of a pool must need pages of the same size (same head_dim, codecs, page_size and
/// policy statistics), and their calls must not overlap. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(std::pmr::memory_resource* resource = std::pmr::get_default_resource(),
                    PageMemory memory = PageMemory::single)
      : memory_(memory),
        idle_(resource),
        scratch_(std::make_shared<detail::ScratchBlocks>(resource)) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool() { trim(); }

  /// Fixes the size of a page, once: `bytes` in all, among them `columns` columns of `column_bytes`
  /// bytes each; the rest, and a column, are whole cache lines. Throws std::invalid_argument where
  /// that differs from before.
  void set_page_bytes(Index bytes, Index columns = 0, Index column_bytes = 0) {
    const Index apart = columns * column_bytes;
    const bool as_before =
        bytes == page_bytes_ && apart == columns_bytes_ && column_bytes == column_bytes_;
    if (page_bytes_ != 0 && !as_before) {
      detail::refuse(
          {"pages of a shared pool (head_dim, codecs, policy, page_size)"},
          {page_bytes_ - columns_bytes_, " bytes of keys, values and weights, ", columns_bytes_,
           " of positions and statistics, for ", column_bytes_ / 4, " entries, as before"},
          {bytes - apart, ", ", apart, ", for ", column_bytes / 4});
    }
    page_bytes_ = bytes;
    columns_bytes_ = apart;
    column_bytes_ = column_bytes;
  }

  /// A page, contents arbitrary but initialised. Throws std::bad_alloc, and is then as before.
  std::byte* take() {
    if (idle_.size() == 0) add_idle();
    return idle_.pop_back();
  }

  /// Where the first column of a page lies, behind what else the pages of its block hold; the next
  /// columns follow block_pages() * column_bytes apart.
  std::byte* columns_of(std::byte* page) const {
    std::byte* block = block_of(page);
    return block + block_pages() * stride() + (page - block) / stride() * column_bytes_;
  }
  /// Pages of a block: 1 but in large memory.
  Index block_pages() const {
    return in_large_blocks() ? static_cast<Index>(kLargePage) / page_bytes_ : 1;
  }

  void give(std::byte* page) noexcept { idle_.push_back(page); }  // add_idle reserved the room

  /// Idle pages back to the memory resource, of large memory whole blocks of them, and scratch when
  /// there are no caches.
  [[gnu::cold]] void trim() noexcept {
    if (scratch_.use_count() == 1) scratch_->clear();
    // The pages of a block side by side, and who is taken next lies first.
    if (in_large_blocks()) {
      const auto behind = [](const std::byte* a, const std::byte* b) {
        return reinterpret_cast<std::uintptr_t>(a) > reinterpret_cast<std::uintptr_t>(b);
      };
      std::make_heap(idle_.begin(), idle_.end(), behind);  // compiles sooner than std::sort
      std::sort_heap(idle_.begin(), idle_.end(), behind);
    }
    auto kept = idle_.begin();
    for (auto first = kept; first != idle_.end();) {
      std::byte* block = block_of(*first);
      const auto last =
          std::find_if(first, idle_.end(), [&](std::byte* p) { return block_of(p) != block; });
      if (last - first == block_pages()) {
        resource()->deallocate(block, block_bytes(), block_alignment());
        total_ -= block_pages();
      } else {
        kept = kept == first ? last : std::copy(first, last, kept);
      }
      first = last;
    }
    idle_.truncate(kept - idle_.begin());
    if (total_ == 0) idle_.clear();
  }

  std::pmr::memory_resource* resource() const { return idle_.resource(); }
  Index page_bytes() const { return page_bytes_; }
  Index pages() const { return total_; }
  Index idle_pages() const { return idle_.size(); }
  /// Bytes that no cache counts: idle pages, what blocks of large memory have left over, scratch,
  /// and the lists that remember them.
  Index idle_bytes() const { return bytes() - (total_ - idle_pages()) * page_bytes_; }
  Index scratch_bytes() const { return scratch_->bytes(); }
  /// Bytes of the lists that remember idle pages and scratch.
  Index bookkeeping_bytes() const { return idle_.bytes() + scratch_->bookkeeping_bytes(); }
  /// Everything the pool holds, pages lent to caches included.
  Index bytes() const { return bytes_for(total_) + scratch_bytes() + bookkeeping_bytes(); }
  /// What it would take from the memory resource for so many pages.
  Index bytes_for(Index pages) const {
    return (pages + block_pages() - 1) / block_pages() * static_cast<Index>(block_bytes());
  }
  /// For the caches' workers.
  const std::shared_ptr<detail::ScratchBlocks>& scratch() const { return scratch_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr Index kMostInBlocks = static_cast<Index>(kLargePage / 8);  // bytes

  /// Pages come in blocks: of one, or of as many as a large page holds.
  bool in_large_blocks() const {
    return memory_ == PageMemory::large && page_bytes_ > 0 && page_bytes_ <= kMostInBlocks;
  }
  /// From a page of a block to the next.
  Index stride() const { return page_bytes_ - columns_bytes_; }
  std::size_t block_bytes() const {
    return in_large_blocks() ? kLargePage : static_cast<std::size_t>(page_bytes_);
  }
  std::size_t block_alignment() const { return in_large_blocks() ? kLargePage : kAlignment; }
  std::byte* block_of(std::byte* page) const {
    if (!in_large_blocks()) return page;
    return page - reinterpret_cast<std::uintptr_t>(page) % kLargePage;
  }

  [[gnu::cold]] void add_idle() {
    const Index wanted = total_ + block_pages();
    if (idle_.capacity() < wanted) idle_.reserve(2 * wanted);
    auto* block = static_cast<std::byte*>(resource()->allocate(block_bytes(), block_alignment()));
    if (in_large_blocks()) ask_for_large_pages(block, block_bytes());
    std::memset(block, 0, block_bytes());  // attention reads whole vectors, past the last entry
    for (Index page = block_pages(); page-- > 0;) idle_.push_back(block + page * stride());
    total_ += block_pages();
  }

  PageMemory memory_;
  detail::List<std::byte*> idle_;
  std::shared_ptr<detail::ScratchBlocks> scratch_;
  Index page_bytes_ = 0, columns_bytes_ = 0, column_bytes_ = 0;
  Index total_ = 0;
};

}  // namespace tersekv
