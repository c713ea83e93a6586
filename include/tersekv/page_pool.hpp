// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <vector>

#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/scratch_blocks.hpp"

namespace tersekv {

/// Fixed-size pages for the heads of one or many caches. A head that shrinks hands its pages back
/// here at once, and the next head that grows, of any layer or sequence, gets them. `trim()` gives
/// idle pages back to the memory resource. The caches' calls work in the same scratch memory, as
/// much as the longest head needs, and find it in the processor's caches.
///
/// All caches of a pool must need pages of the same size (same head_dim, codecs, page_size and
/// policy statistics), and their calls must not overlap. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(std::pmr::memory_resource* resource = std::pmr::get_default_resource())
      : resource_(resource),
        idle_(resource),
        scratch_(std::make_shared<detail::ScratchBlocks>(resource)) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool() { trim(); }

  /// Fixes the size of a page, once. Throws std::invalid_argument where it differs from before.
  void set_page_bytes(Index bytes) {
    if (page_bytes_ != 0 && page_bytes_ != bytes) {
      detail::refuse("page of a shared pool (head_dim, codecs, page_size, statistics)",
                     detail::text(page_bytes_, " bytes, as before"), detail::text(bytes));
    }
    page_bytes_ = bytes;
  }

  /// A page, contents arbitrary but initialised. Throws std::bad_alloc, and is then as before.
  std::byte* take() {
    if (idle_.empty()) add_idle();
    std::byte* page = idle_.back();
    idle_.pop_back();
    return page;
  }

  void give(std::byte* page) noexcept { idle_.push_back(page); }  // add_idle reserved the room

  /// Idle pages back to the memory resource, and scratch when there are no caches.
  void trim() noexcept {
    if (scratch_.use_count() == 1) scratch_->clear();
    for (std::byte* page : idle_) resource_->deallocate(page, size(), kAlignment);
    total_ -= static_cast<Index>(idle_.size());
    idle_.clear();
    if (total_ == 0) std::pmr::vector<std::byte*>(resource_).swap(idle_);
  }

  std::pmr::memory_resource* resource() const { return resource_; }
  Index page_bytes() const { return page_bytes_; }
  Index pages() const { return total_; }
  Index idle_pages() const { return static_cast<Index>(idle_.size()); }
  /// Bytes that no cache counts: idle pages, scratch, and the lists that remember them.
  Index idle_bytes() const {
    return idle_pages() * page_bytes_ + scratch_bytes() + bookkeeping_bytes();
  }
  Index scratch_bytes() const { return scratch_->bytes(); }
  /// Bytes of the lists that remember idle pages and scratch.
  Index bookkeeping_bytes() const {
    return static_cast<Index>(idle_.capacity() * sizeof(std::byte*)) +
           scratch_->bookkeeping_bytes();
  }
  /// Everything the pool holds, pages lent to caches included.
  Index bytes() const { return total_ * page_bytes_ + scratch_bytes() + bookkeeping_bytes(); }
  /// For the caches' workers.
  const std::shared_ptr<detail::ScratchBlocks>& scratch() const { return scratch_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t size() const { return static_cast<std::size_t>(page_bytes_); }

  void add_idle() {
    const auto wanted = static_cast<std::size_t>(total_ + 1);
    if (idle_.capacity() < wanted) idle_.reserve(2 * wanted);
    void* page = resource_->allocate(size(), kAlignment);
    std::memset(page, 0, size());  // attention reads whole vectors, past the last entry of a page
    idle_.push_back(static_cast<std::byte*>(page));
    ++total_;
  }

  std::pmr::memory_resource* resource_;
  std::pmr::vector<std::byte*> idle_;
  std::shared_ptr<detail::ScratchBlocks> scratch_;
  Index page_bytes_ = 0;
  Index total_ = 0;
};

}  // namespace tersekv
