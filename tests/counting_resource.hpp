// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <utility>

/// Counts what it gives out and gets back, and fails when told to. Remembers every block, so that
/// one given back twice, or with another size or alignment, is noticed.
class CountingResource : public std::pmr::memory_resource {
 public:
  static constexpr std::int64_t kNever = -1;

  std::int64_t bytes() const { return bytes_; }  ///< given out and not yet back
  std::int64_t peak() const { return peak_; }
  std::int64_t allocations() const { return allocations_; }
  std::int64_t blocks() const { return static_cast<std::int64_t>(sizes_.size()); }
  bool sound() const { return sound_; }  ///< every block came back as it went

  /// The next `successes` allocations succeed, all later ones throw std::bad_alloc.
  void fail_after(std::int64_t successes) { left_ = successes; }

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    if (left_ == 0) throw std::bad_alloc();
    if (left_ > 0) --left_;
    void* block = std::pmr::new_delete_resource()->allocate(size, alignment);
    sizes_[block] = {size, alignment};
    ++allocations_;
    bytes_ += static_cast<std::int64_t>(size);
    peak_ = std::max(peak_, bytes_);
    return block;
  }
  void do_deallocate(void* block, std::size_t size, std::size_t alignment) override {
    const auto found = sizes_.find(block);
    sound_ = sound_ && found != sizes_.end() && found->second == std::pair(size, alignment);
    if (found == sizes_.end()) return;
    sizes_.erase(found);
    bytes_ -= static_cast<std::int64_t>(size);
    std::pmr::new_delete_resource()->deallocate(block, size, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::map<void*, std::pair<std::size_t, std::size_t>> sizes_;  // and alignments
  std::int64_t bytes_ = 0, peak_ = 0, allocations_ = 0, left_ = kNever;
  bool sound_ = true;
};
