// SPDX-License-Identifier: Apache-2.0
#include "cuda_caches.cuh"

namespace llama {

std::unique_ptr<LayerCaches> make_cuda_caches_f16(const CacheRequest& request) {
  return make_caches_of<CudaCaches, tersekv::Half>(request);
}

Index full_cuda_cache_bytes_f16(const CacheRequest& request, Index tokens) {
  return full_device_cache_bytes_of<CudaCaches<tersekv::Full, tersekv::Half>>(request, tokens);
}

}  // namespace llama
