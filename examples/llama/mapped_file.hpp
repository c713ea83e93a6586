// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace llama {

/// A file's bytes, mapped read-only; pages are read when they are first touched.
/// The file must not be cut short while it is mapped: the system ends a program that reads there.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws std::runtime_error, naming the file, where it cannot be read or is empty.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace llama
