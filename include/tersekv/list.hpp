// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

#include "tersekv/config.hpp"

namespace tersekv::detail {

/// What a `List` has to do with memory, whatever its elements: so that it is compiled once.
class ListMemory {
 public:
  ListMemory(std::pmr::memory_resource* resource, std::size_t element_bytes, std::size_t alignment)
      : resource_(resource), element_bytes_(element_bytes), alignment_(alignment) {}
  ListMemory(ListMemory&& other) noexcept
      : resource_(other.resource_),
        element_bytes_(other.element_bytes_),
        alignment_(other.alignment_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ListMemory& operator=(ListMemory&&) = delete;
  ~ListMemory() { clear(); }

  std::pmr::memory_resource* resource() const { return resource_; }
  Index size() const { return size_; }
  Index capacity() const { return capacity_; }
  Index bytes() const { return static_cast<Index>(bytes_for(capacity_)); }

  /// Room for so many elements in all. Throws std::bad_alloc, and is then as before.
  [[gnu::cold]] void reserve(Index capacity) {
    if (capacity <= capacity_) return;
    void* const grown = resource_->allocate(bytes_for(capacity), alignment_);
    const Index size = size_;
    if (size > 0) std::memcpy(grown, data_, bytes_for(size));
    clear();
    data_ = grown;
    size_ = size;
    capacity_ = capacity;
  }
  /// The first `size` elements; the room stays.
  void truncate(Index size) { size_ = size; }
  /// Nothing, and no memory.
  [[gnu::cold]] void clear() noexcept {
    if (capacity_ > 0) resource_->deallocate(data_, bytes_for(capacity_), alignment_);
    data_ = nullptr;
    size_ = capacity_ = 0;
  }

 protected:
  void* memory() const { return data_; }
  /// One more, of which nothing is there yet. Throws std::bad_alloc where there is no room.
  void add() {
    if (size_ == capacity_) reserve(2 * capacity_ + 1);
    ++size_;
  }

 private:
  std::size_t bytes_for(Index count) const {
    return static_cast<std::size_t>(count) * element_bytes_;
  }

  std::pmr::memory_resource* resource_;
  std::size_t element_bytes_, alignment_;
  void* data_ = nullptr;
  Index size_ = 0, capacity_ = 0;
};

/// A growing array on a memory resource of what may be copied byte by byte. Moves, but is not
/// copied. (std::pmr::vector makes each element by way of its allocator, which takes a twentieth of
/// what an includer compiles.)
template <class T>
class List : public ListMemory {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit List(std::pmr::memory_resource* resource, Index size = 0)
      : ListMemory(resource, sizeof(T), alignof(T)) {
    reserve(size);
    while (this->size() < size) push_back(T{});
  }

  T* data() { return static_cast<T*>(memory()); }
  const T* data() const { return static_cast<const T*>(memory()); }
  T* begin() { return data(); }
  T* end() { return data() + size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  T& operator[](Index i) { return data()[i]; }
  const T& operator[](Index i) const { return data()[i]; }

  /// Throws std::bad_alloc where there is no room, and is then as before.
  void push_back(const T& element) {
    const T copy = element;  // it may be one of the list's own
    add();
    ::new (static_cast<void*>(end() - 1)) T(copy);
  }
  T pop_back() {
    truncate(size() - 1);
    return *end();
  }
};

}  // namespace tersekv::detail
