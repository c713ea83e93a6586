// SPDX-License-Identifier: Apache-2.0
#include "cuda_caches.cuh"

namespace llama {

std::unique_ptr<LayerCaches> make_cuda_caches_bf16(const CacheRequest& request) {
  return make_caches_of<CudaCaches, tersekv::BFloat16>(request);
}

Index full_cuda_cache_bytes_bf16(const CacheRequest& request, Index tokens) {
  return full_device_cache_bytes_of<CudaCaches<tersekv::Full, tersekv::BFloat16>>(request, tokens);
}

}  // namespace llama
