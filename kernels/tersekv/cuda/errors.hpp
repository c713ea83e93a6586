// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <stdexcept>
#include <string>

namespace tersekv::cuda {

/// A call of the CUDA runtime, or a launch, that failed.
class Error : public std::runtime_error {
 public:
  Error(const std::string& what, int cuda_code)
      : std::runtime_error("tersekv: CUDA: " + what), code_(cuda_code) {}
  int code() const { return code_; }  ///< cudaError_t

 private:
  int code_;
};

/// The device has no memory for an allocation.
class OutOfMemory : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "tersekv: CUDA: out of device memory"; }
};

/// A head needed a page and its pool had none, or the head's table had no room for it (replayed
/// graphs, which the host does not count): the tokens of that call are missing from it. Told by the
/// first call that can know; `clear`, more pages or a larger max_length help.
class OutOfPages : public std::runtime_error {
 public:
  explicit OutOfPages(int heads)
      : std::runtime_error(
            "tersekv: pages: expected one in the pool and room in the table for every head "
            "that grows, got " +
            std::to_string(heads) + " appends without; their tokens are lost") {}
};

}  // namespace tersekv::cuda
