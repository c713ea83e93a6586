// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "tersekv/cuda/context.cuh"
#include "tersekv/cuda/errors.hpp"

namespace tersekv::cuda {

/// Throws what the CUDA runtime has to complain of.
inline void check(cudaError_t code, const char* doing) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // forgotten, unless the device is lost
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory();
  throw Error(std::string(doing) + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code),
              static_cast<int>(code));
}

/// Blocks of a multiprocessor that a body's registers must leave room for: those whose shared
/// memory fits, as far as that makes a difference. Without such a number the compiler spills to
/// make room for blocks that never come.
template <class Body>
constexpr int most_blocks() {
  if constexpr (requires { Body::kMostBlocks; }) return Body::kMostBlocks;
  return Body::kThreads > 256 ? 1 : Body::kThreads > 128 ? 2 : 3;
}
template <class Body>
inline constexpr int kBlocksAtOnce =
    std::clamp(static_cast<int>(160 * 1024 / (Body::kSharedBytes + 1024)), 1, most_blocks<Body>());

/// A body as a kernel. Arguments lie in constant memory, so bodies may point at them.
template <class Body>
__global__ void __launch_bounds__(Body::kThreads, kBlocksAtOnce<Body>)
    run_body(const __grid_constant__ typename Body::Args args, int team, std::uint32_t* words) {
  extern __shared__ __align__(128) std::byte memory[];
#if __CUDA_ARCH__ >= 900
  // The next kernel of the stream may be put in place now; it waits here for this one's end.
  asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
  // A word for every size of team: each counts in rounds of its own.
  std::uint32_t* word =
      words == nullptr ? nullptr : words + blockIdx.x / team * kTeamSizes + __ffs(team) - 1;
  Body::run(DeviceContext<Body::kThreads, kFewerThreads<Body>>(memory, team, word), args);
}

/// The current CUDA device, for `BasicKVCache`.
struct CudaRuntime {
  using Stream = cudaStream_t;
  static constexpr int kAttentionWarps = 4, kTeamThreads = 512, kAppendThreads = 128;

  static void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "allocation");
    return memory;
  }
  static void deallocate(void* memory) noexcept { cudaFree(memory); }
  /// Of the host, written by kernels.
  static void* allocate_visible(std::size_t bytes) {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), "allocation of pinned memory");
    return memory;
  }
  static void deallocate_visible(void* memory) noexcept { cudaFreeHost(memory); }
  static void zero(void* memory, std::size_t bytes, Stream stream) {
    check(cudaMemsetAsync(memory, 0, bytes, stream), "zeroing");
  }
  static void copy_in(void* to, const void* from, std::size_t bytes, Stream stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copy to the device");
  }
  static void copy_out(void* to, const void* from, std::size_t bytes, Stream stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "copy to the host");
  }
  /// A point in the work of a stream, for other streams to wait for.
  class Event {
   public:
    Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { cudaEventDestroy(event_); }
    void record(Stream stream) { check(cudaEventRecord(event_, stream), "record of an event"); }
    /// What follows on `stream` comes after what was before the last `record`.
    void hold(Stream stream) const {
      check(cudaStreamWaitEvent(stream, event_, cudaEventWaitDefault), "wait for an event");
    }

   private:
    cudaEvent_t event_ = nullptr;
  };

  static void synchronize(Stream stream) {
    check(cudaStreamSynchronize(stream), "synchronization");
  }
  static void synchronize_device() { check(cudaDeviceSynchronize(), "synchronization"); }

  static Index multiprocessors() { return device().multiprocessors; }

  /// Blocks of the body that run at the same time. Asks the runtime once per body and thread.
  template <class Body>
  static Index resident_blocks() {
    thread_local int of_device = -1;
    thread_local Index resident = 0;
    const Device& here = device();
    if (of_device != here.id) {
      prepare<Body>();
      int per_multiprocessor = 0;
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, run_body<Body>,
                                                          Body::kThreads, Body::kSharedBytes),
            "occupancy");
      resident = Index{per_multiprocessor} * here.multiprocessors;
      of_device = here.id;
    }
    return resident < 1 ? 1 : resident;
  }

  /// Asynchronous. `team` consecutive blocks work together: a cluster where the device has them,
  /// else blocks of a cooperative launch that meet at `words`. `threads` of a block: fewer than
  /// the body's only where it takes them.
  template <class Body>
  static void launch(Grid grid, int team, std::uint32_t* words, Stream stream,
                     const typename Body::Args& args, int threads = Body::kThreads) {
    const Device& here = device();
    prepare<Body>();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                          static_cast<unsigned>(grid.z));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = Body::kSharedBytes;
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    config.attrs = attributes;
    if (here.is_hopper) {
      auto& overlap = attributes[config.numAttrs++];
      overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlap.val.programmaticStreamSerializationAllowed = 1;
    }
    if (team > 1) {
      auto& together = attributes[config.numAttrs++];
      if (here.is_hopper) {
        together.id = cudaLaunchAttributeClusterDimension;
        together.val.clusterDim.x = static_cast<unsigned>(team);
        together.val.clusterDim.y = together.val.clusterDim.z = 1;
      } else {
        together.id = cudaLaunchAttributeCooperative;
        together.val.cooperative = 1;
      }
    }
    check(cudaLaunchKernelEx(&config, run_body<Body>, args, team, words), "launch");
  }

 private:
  struct Device {
    int id = -1;
    int multiprocessors = 0;
    bool is_hopper = false;  // or later: clusters, and kernels put in place before the last ends
  };
  static const Device& device() {
    thread_local Device known;
    int current = 0;
    check(cudaGetDevice(&current), "current device");
    if (current != known.id) {
      int major = 0;
      check(cudaDeviceGetAttribute(&known.multiprocessors, cudaDevAttrMultiProcessorCount, current),
            "device attributes");
      check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current),
            "device attributes");
      known.is_hopper = major >= 9;
      known.id = current;
    }
    return known;
  }
  /// Shared memory beyond 48 KiB, of which a kernel has some beside what it is launched with, must
  /// be asked for. Every time, and inlined: each translation unit
  /// has a kernel of its own for a body, and the linker may take this function from another one.
  template <class Body>
  __forceinline__ static void prepare() {
    if constexpr (Body::kSharedBytes > 40 * 1024) {
      check(cudaFuncSetAttribute(run_body<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(Body::kSharedBytes)),
            "shared memory");
    }
  }
};

}  // namespace tersekv::cuda
