// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <iostream>
#include <tersekv/cuda/kv_cache.cuh>
#include <tersekv/tersekv.hpp>

int main() try {  // four sequences of one layer: 32 query heads on 8 KV heads of 128 elements
  using Cache = tersekv::cuda::KVCache<tersekv::ZSMerge, tersekv::BFloat16, tersekv::BFloat16,
                                       tersekv::cuda::HeadDims<128>>;
  Cache cache(
      {.num_sequences = 4, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128, .budget = 512});
  tersekv::BFloat16* rows = nullptr;  // q, k and v of a token of each sequence, and its output
  cudaMalloc(&rows, 4 * (32 + 8 + 8 + 32) * 128 * sizeof *rows);
  cudaMemset(rows, 0, 4 * (32 + 8 + 8 + 32) * 128 * sizeof *rows);
  const auto part = [&](int first, int heads) {
    return tersekv::nhd_view(rows + 4 * first * 128, 4, heads, 128);
  };
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  for (int token = 0; token < 1000; ++token) {  // asynchronous, and could be a captured graph
    cache.extend(tersekv::cuda::Batch<tersekv::BFloat16>({0, 4}, part(0, 32), part(32, 8),
                                                         part(40, 8), part(48, 32)),
                 {}, stream);
  }
  cache.synchronize(stream);  // lengths are known to the device alone until then
  std::cout << "entries kept  " << cache.length(0, 0) << " per head of " << cache.tokens_seen(0)
            << "\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
