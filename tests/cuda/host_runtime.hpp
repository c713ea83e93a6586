// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <vector>

#include "cuda/host_context.hpp"
#include "tersekv/cuda/basic_kv_cache.hpp"

namespace host_cuda {

/// A device on the host, for `tersekv::cuda::BasicKVCache`: its memory is the host's, poisoned
/// when allocated, and its streams do everything at once, but for kLateStream, which does nothing
/// before somebody waits for it: whoever should have and did not finds what was there before.
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
  static void synchronize(Stream stream) {
    ++synchronizations;
    if (stream != kLateStream) return;
    catch_up(late.size());
    joined = given;
  }
  static void synchronize_device() { synchronize(kLateStream); }

  static constexpr Stream kLateStream = 1;
  /// A point in the work of a stream, for others to wait for.
  class Event {
   public:
    void record(Stream stream) {
      before_ = stream == kLateStream ? 0 : made;
      late_before_ = stream == kLateStream ? given : 0;
    }
    void hold(Stream stream) const {
      if (stream == kLateStream) {
        late_follows = before_;
        return;
      }
      joined = std::max(joined, late_before_);
      if (late_before_ > given - late.size()) catch_up(late_before_ - (given - late.size()));
    }

   private:
    std::size_t before_ = 0, late_before_ = 0;  ///< launches on other streams, and on the late one
  };
  static tersekv::Index multiprocessors() { return 4; }
  template <class Body>
  static tersekv::Index resident_blocks() {
    return 8;
  }
  template <class Body>
  static void launch(Grid grid, int team, std::uint32_t*, Stream stream,
                     const typename Body::Args& args, int threads = Body::kThreads) {
    const auto call = [=] { run<Body>(grid, Body::kSharedBytes, team, args, threads); };
    if (stream == kLateStream) {
      // It could run at once, too, so it must come after what it follows.
      if (late_follows != made) throw std::logic_error("a launch that does not wait for others");
      ++given;
    } else {
      ++made;
    }
    if (captured != nullptr) {
      captured->push_back(call);
    } else if (stream == kLateStream) {
      late.push_back(call);
    } else {
      ++launches;
      call();
    }
  }

  // What a step may not do, and how often it did.
  inline static int allocations = 0, copies_to_host = 0, synchronizations = 0, launches = 0;
  inline static tersekv::Index bytes = 0;  // held
  /// Where launches go instead of being made, while a graph is captured.
  inline static std::vector<std::function<void()>>* captured = nullptr;
  /// Launches that kLateStream has not made yet.
  inline static std::vector<std::function<void()>> late;
  /// Launches ever given to it, captured ones included, and as many of them as others wait for;
  /// made on other streams, and as many of them as it waits for.
  inline static std::size_t given = 0, joined = 0, made = 0, late_follows = 0;

 private:
  static void catch_up(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) late[i]();
    late.erase(late.begin(), late.begin() + static_cast<std::ptrdiff_t>(count));
    launches += static_cast<int>(count);
  }
};

/// Small head_dims too, for golden cases and speed.
using Dims = tersekv::cuda::HeadDims<8, 16, 32, 64, 80>;

template <class Policy, class Key = float, class Value = Key>
using KVCache = tersekv::cuda::BasicKVCache<Policy, Key, Value, Runtime, Dims>;

}  // namespace host_cuda
