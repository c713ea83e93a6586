// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

#include "tersekv/cuda/body/context.hpp"

namespace tersekv::cuda {

/// The execution context of a CUDA thread (`tersekv/cuda/body/context.hpp` says what each function
/// does). `barrier_word` is global memory for teams of several blocks on devices without clusters,
/// zero at first.
///
/// Functions are marked for both sides, as bodies are; the host's side is never run.
///
/// A block has `Threads` threads, or with AnyNumber a number of whole warps up to that.
template <int Threads, bool AnyNumber = false>
class DeviceContext {
  static constexpr int kMostWarps = Threads / kWarp;

 public:
  TERSEKV_HD DeviceContext(std::byte* shared_memory, int team, std::uint32_t* barrier_word)
      : shared_(shared_memory), team_(team), barrier_word_(barrier_word) {}

#if defined(__CUDA_ARCH__)
  __device__ Grid block() const {
    return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
            static_cast<int>(blockIdx.z)};
  }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ static int threads() { return AnyNumber ? static_cast<int>(blockDim.x) : Threads; }
  __device__ int lane() const { return thread() % kWarp; }
  __device__ int warp() const { return thread() / kWarp; }
  __device__ std::byte* shared() const { return shared_; }
  __device__ void barrier() const { __syncthreads(); }
  __device__ void warp_barrier() const { __syncwarp(); }

  template <class T>
  __device__ T shuffle_xor(T x, int mask) const {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }
  template <class T>
  __device__ T shuffle(T x, int from) const {
    return __shfl_sync(0xffffffffu, x, from);
  }
  __device__ std::uint32_t ballot(bool yes) const { return __ballot_sync(0xffffffffu, yes); }
  template <class T, class Op>
  __device__ T reduce(T x, Op op) const {
    using Reduce = cub::WarpReduce<T>;
    __shared__ typename Reduce::TempStorage storage[kMostWarps];
    __shared__ T of_warp[kMostWarps];
    const T mine = Reduce(storage[warp()]).Reduce(x, op);
    if (lane() == 0) of_warp[warp()] = mine;
    __syncthreads();
    T total = of_warp[0];
    for (int w = 1; w < threads() / kWarp; ++w) total = op(total, of_warp[w]);
    __syncthreads();
    return total;
  }
  __device__ int exclusive_sum(int x, int& total) const {
    using Scan = cub::WarpScan<int>;
    __shared__ typename Scan::TempStorage storage[kMostWarps];
    __shared__ int of_warp[kMostWarps];
    int before = 0, mine = 0;
    Scan(storage[warp()]).ExclusiveSum(x, before, mine);
    if (lane() == 0) of_warp[warp()] = mine;
    __syncthreads();
    total = 0;
    for (int w = 0; w < threads() / kWarp; ++w) {
      before += w < warp() ? of_warp[w] : 0;
      total += of_warp[w];
    }
    __syncthreads();
    return before;
  }

  __device__ void copy16(void* to, const void* from, bool there = true) const {
    const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
  }
  __device__ void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int N>
  __device__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }
  __device__ void load_transposed(std::uint32_t (&r)[4], const void* row) const {
    const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  }
  template <class E>
  __device__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                      const std::uint32_t (&b)[2]) const {
    if constexpr (std::is_same_v<E, Half>) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  template <class E>
  __device__ std::uint32_t pack(float low, float high) const {
    std::uint32_t word;
    if constexpr (std::is_same_v<E, Half>) {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    }
    return word;
  }
  __device__ float exp(float x) const { return __expf(x); }
  __device__ std::int32_t fetch_add(std::int32_t* p, std::int32_t x) const {
    return atomicAdd(p, x);
  }
  __device__ std::int32_t compare_exchange(std::int32_t* p, std::int32_t expected,
                                           std::int32_t x) const {
    return atomicCAS(p, expected, x);
  }

  __device__ int team_blocks() const { return team_; }
  __device__ int team_rank() const { return static_cast<int>(blockIdx.x) % team_; }
  /// Of a cluster in hardware; without clusters all blocks of the grid are resident (a cooperative
  /// launch) and count themselves in global memory.
  __device__ void team_barrier() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
    if (thread() == 0) {
      // The word counts arrivals; the barrier is passed when the round that ours began is full.
      __threadfence();
      const std::uint32_t blocks = static_cast<std::uint32_t>(team_);
      const std::uint32_t round = atomicAdd(barrier_word_, 1u) / blocks;
      while (*static_cast<volatile std::uint32_t*>(barrier_word_) / blocks == round) {
      }
      __threadfence();
    }
    __syncthreads();
#endif
  }
#else
  // The host's side of a body: compiled, never run.
  TERSEKV_HD Grid block() const { return {}; }
  TERSEKV_HD int thread() const { return 0; }
  TERSEKV_HD static int threads() { return Threads; }
  TERSEKV_HD int lane() const { return 0; }
  TERSEKV_HD int warp() const { return 0; }
  TERSEKV_HD std::byte* shared() const { return shared_; }
  TERSEKV_HD void barrier() const {}
  TERSEKV_HD void warp_barrier() const {}
  template <class T>
  TERSEKV_HD T shuffle_xor(T x, int) const {
    return x;
  }
  template <class T>
  TERSEKV_HD T shuffle(T x, int) const {
    return x;
  }
  TERSEKV_HD std::uint32_t ballot(bool) const { return 0; }
  template <class T, class Op>
  TERSEKV_HD T reduce(T x, Op) const {
    return x;
  }
  TERSEKV_HD int exclusive_sum(int, int&) const { return 0; }
  TERSEKV_HD void copy16(void*, const void*, bool = true) const {}
  TERSEKV_HD void commit() const {}
  template <int N>
  TERSEKV_HD void wait() const {}
  TERSEKV_HD void load_transposed(std::uint32_t (&)[4], const void*) const {}
  template <class E>
  TERSEKV_HD void mma(float (&)[4], const std::uint32_t (&)[4], const std::uint32_t (&)[2]) const {}
  template <class E>
  TERSEKV_HD std::uint32_t pack(float, float) const {
    return 0;
  }
  TERSEKV_HD float exp(float x) const { return x; }
  TERSEKV_HD std::int32_t fetch_add(std::int32_t*, std::int32_t) const { return 0; }
  TERSEKV_HD std::int32_t compare_exchange(std::int32_t*, std::int32_t, std::int32_t) const {
    return 0;
  }
  TERSEKV_HD int team_blocks() const { return team_; }
  TERSEKV_HD int team_rank() const { return 0; }
  TERSEKV_HD void team_barrier() const {}
#endif

 private:
  std::byte* shared_;
  int team_;
  std::uint32_t* barrier_word_;
};

}  // namespace tersekv::cuda
