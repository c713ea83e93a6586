// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <tersekv/cuda/runtime.cuh>
#include <tersekv/element.hpp>

// What a decode step needs beside matrix products and the cache, as plainly as possible: it is a
// small part of the step's time.
namespace decode {

using tersekv::BFloat16;
using tersekv::Index;

/// Where the random numbers are: a seed of their own for every use, and a count in device memory
/// that goes on from step to step, also when a graph is replayed.
struct Random {
  std::uint32_t seed = 0;
  const std::uint32_t* count = nullptr;  ///< null: 0

  /// Evenly distributed in [0, 1), by a hash of place, count and seed.
  __device__ float operator()(Index place) const {
    std::uint64_t x = static_cast<std::uint64_t>(place) + (std::uint64_t{seed} << 40) +
                      0x9e3779b97f4a7c15u * (count == nullptr ? 1u : *count + 1u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24f;
  }
};

/// Evenly distributed, with this standard deviation.
static __global__ void fill_kernel(BFloat16* out, Index n, float deviation, Random random) {
  const Index step = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    out[i] = tersekv::from_float<BFloat16>((2 * random(i) - 1) * 1.7320508f * deviation);
  }
}
/// Evenly distributed in [0, 1).
static __global__ void fill_scores_kernel(float* out, Index n, Random random) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = random(i);
}
static __global__ void count_kernel(std::uint32_t* count) { ++*count; }

/// A row per block. The gains of a random model are 1.
static __global__ void rms_norm_kernel(BFloat16* out, const BFloat16* in, Index width) {
  __shared__ float sums[8];
  const BFloat16* x = in + blockIdx.x * width;
  float sum = 0;
  for (Index i = threadIdx.x; i < width; i += blockDim.x) {
    sum += tersekv::to_float(x[i]) * tersekv::to_float(x[i]);
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
  for (const float part : sums) total += part;
  const float inverse = rsqrtf(total / static_cast<float>(width) + 1e-5f);
  for (Index i = threadIdx.x; i < width; i += blockDim.x) {
    out[blockIdx.x * width + i] = tersekv::from_float<BFloat16>(tersekv::to_float(x[i]) * inverse);
  }
}

/// out = silu(gate) * up, of rows of gate|up.
static __global__ void swiglu_kernel(BFloat16* out, const BFloat16* gate_up, Index width) {
  const BFloat16* row = gate_up + blockIdx.y * 2 * width;
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const float gate = tersekv::to_float(row[i]), up = tersekv::to_float(row[width + i]);
  out[blockIdx.y * width + i] = tersekv::from_float<BFloat16>(gate / (1 + __expf(-gate)) * up);
}

inline unsigned blocks_for(Index n) { return static_cast<unsigned>((n + 255) / 256); }
inline void launched(const char* what) { tersekv::cuda::check(cudaGetLastError(), what); }

inline void fill(BFloat16* out, Index n, float deviation, Random random, cudaStream_t stream) {
  const unsigned blocks = blocks_for(n) < 4096 ? blocks_for(n) : 4096;
  fill_kernel<<<blocks, 256, 0, stream>>>(out, n, deviation, random);
  launched("random numbers");
}
inline void fill_scores(float* out, Index n, Random random, cudaStream_t stream) {
  fill_scores_kernel<<<blocks_for(n), 256, 0, stream>>>(out, n, random);
  launched("random scores");
}
inline void count_step(std::uint32_t* count, cudaStream_t stream) {
  count_kernel<<<1, 1, 0, stream>>>(count);
  launched("counting");
}
inline void rms_norm(BFloat16* out, const BFloat16* in, Index rows, Index width,
                     cudaStream_t stream) {
  rms_norm_kernel<<<static_cast<unsigned>(rows), 256, 0, stream>>>(out, in, width);
  launched("RMSNorm");
}
inline void swiglu(BFloat16* out, const BFloat16* gate_up, Index rows, Index width,
                   cudaStream_t stream) {
  swiglu_kernel<<<dim3(blocks_for(width), static_cast<unsigned>(rows)), 256, 0, stream>>>(
      out, gate_up, width);
  launched("SwiGLU");
}

}  // namespace decode
