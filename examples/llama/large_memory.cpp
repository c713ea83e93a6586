// SPDX-License-Identifier: Apache-2.0
#include "large_memory.hpp"

#include <cstdlib>
#include <new>

namespace llama {

LargeMemory::LargeMemory(std::size_t bytes) {
  const std::size_t pages = (bytes + kPage - 1) / kPage;
  bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, pages * kPage)));
  if (bytes_ == nullptr) throw std::bad_alloc();
  tersekv::ask_for_large_pages(bytes_.get(), pages * kPage);
}

void LargeMemory::Free::operator()(std::byte* bytes) const { std::free(bytes); }

}  // namespace llama
