// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tersekv {

/// Bytes of the system's large pages, and what memory that is to lie in some is aligned to.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

/// Asks for large pages for `bytes` bytes, whole ones, at `memory`, aligned to them, before
/// anything is written there. What is read from start to end comes faster from these: processors
/// look ahead only to the end of a page. Where the system has none, or gives none to who asks,
/// nothing changes.
inline void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
#endif
}

}  // namespace tersekv
