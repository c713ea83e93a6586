// SPDX-License-Identifier: Apache-2.0
#include "large_memory.hpp"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace llama {

LargeMemory::LargeMemory(std::size_t bytes) {
  const std::size_t pages = (bytes + kPage - 1) / kPage;
  bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, pages * kPage)));
  if (bytes_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Where it is refused, pages are small.
  static_cast<void>(madvise(bytes_.get(), pages * kPage, MADV_HUGEPAGE));
#endif
}

void LargeMemory::Free::operator()(std::byte* bytes) const { std::free(bytes); }

}  // namespace llama
