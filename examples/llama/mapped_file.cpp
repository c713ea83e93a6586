// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace llama {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error(path.string() + ": " + what);
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail("cannot open: " + std::string(std::strerror(errno)));

  struct stat status = {};
  const bool is_file = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = MAP_FAILED;
  if (is_file && size > 0) address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int map_error = errno;
  close(descriptor);

  if (!is_file) fail("cannot read: expected a regular file");
  if (size == 0) fail("the file is empty");
  if (address == MAP_FAILED) fail("cannot map: " + std::string(std::strerror(map_error)));
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace llama
