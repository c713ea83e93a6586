// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "tersekv/large_pages.hpp"

namespace llama {

/// Memory in the system's large pages, where it has them for those who ask (Linux): for weights,
/// which are read from start to end for every token.
class LargeMemory {
 public:
  static constexpr std::size_t kPage = tersekv::kLargePage;

  /// Contents arbitrary, aligned to kPage. Throws std::bad_alloc.
  explicit LargeMemory(std::size_t bytes);

  std::byte* data() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

}  // namespace llama
