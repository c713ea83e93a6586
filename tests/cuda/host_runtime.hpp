// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

#include "cuda/host_context.hpp"
#include "tersekv/cuda/basic_kv_cache.hpp"

namespace host_cuda {

/// A device on the host, for `tersekv::cuda::BasicKVCache`: its memory is the host's, poisoned
/// when allocated, and its streams do everything at once.
struct Runtime {
  using Stream = int;
  static constexpr int kAttentionWarps = 2, kTeamThreads = 64, kAppendThreads = 32;

  static void* allocate(std::size_t size) {
    void* memory = std::aligned_alloc(256, (size + 511) / 256 * 256);
    if (memory == nullptr) throw tersekv::cuda::OutOfMemory();
    std::memcpy(memory, &size, sizeof size);
    ++allocations;
    bytes += static_cast<tersekv::Index>(size);
    return std::memset(static_cast<std::byte*>(memory) + 256, 0xff, size);
  }
  static void deallocate(void* memory) {
    std::byte* block = static_cast<std::byte*>(memory) - 256;  // where its size is
    std::size_t size = 0;
    std::memcpy(&size, block, sizeof size);
    bytes -= static_cast<tersekv::Index>(size);
    std::free(block);
  }
  static void* allocate_visible(std::size_t size) { return allocate(size); }
  static void deallocate_visible(void* memory) { deallocate(memory); }
  static void zero(void* memory, std::size_t size, Stream) { std::memset(memory, 0, size); }
  static void copy_in(void* to, const void* from, std::size_t size, Stream) {
    std::memcpy(to, from, size);
  }
  static void copy_out(void* to, const void* from, std::size_t size, Stream) {
    std::memcpy(to, from, size);
    ++copies_to_host;
  }
  static void synchronize(Stream) { ++synchronizations; }
  static void synchronize_device() { ++synchronizations; }
  static tersekv::Index multiprocessors() { return 4; }
  template <class Body>
  static tersekv::Index resident_blocks() {
    return 8;
  }
  template <class Body>
  static void launch(Grid grid, int team, std::uint32_t*, Stream, const typename Body::Args& args,
                     int threads = Body::kThreads) {
    if (captured != nullptr) {
      captured->push_back([=] { run<Body>(grid, Body::kSharedBytes, team, args, threads); });
      return;
    }
    ++launches;
    run<Body>(grid, Body::kSharedBytes, team, args, threads);
  }

  // What a step may not do, and how often it did.
  inline static int allocations = 0, copies_to_host = 0, synchronizations = 0, launches = 0;
  inline static tersekv::Index bytes = 0;  // held
  /// Where launches go instead of being made, while a graph is captured.
  inline static std::vector<std::function<void()>>* captured = nullptr;
};

/// Small head_dims too, for golden cases and speed.
using Dims = tersekv::cuda::HeadDims<8, 16, 32, 64, 80>;

template <class Policy, class Key = float, class Value = Key>
using KVCache = tersekv::cuda::BasicKVCache<Policy, Key, Value, Runtime, Dims>;

}  // namespace host_cuda
