// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace llama {

/// Memory in the system's large pages, where it has them for those who ask (Linux). What is read
/// from start to end for every token, weights and caches, comes a fifth to a half faster from
/// these: the processor looks ahead only to the end of a page.
class LargeMemory {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;

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
