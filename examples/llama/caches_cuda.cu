// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "layer_caches.hpp"

namespace llama {
namespace {

void need_device() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return;
  throw std::runtime_error(
      std::string("--device cuda: there is no CUDA device") +
      (code == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(code) + ")"));
}

}  // namespace

std::unique_ptr<LayerCaches> make_cuda_caches(const CacheRequest& request) {
  need_device();
  return dispatch<MakeCaches>(request.kv_type,
                              {{"f32", make_cuda_caches_f32},
                               {"f16", make_cuda_caches_f16},
                               {"bf16", make_cuda_caches_bf16}},
                              request);
}

Index full_cuda_cache_bytes(const CacheRequest& request, Index tokens) {
  return dispatch<CacheBytes>(request.kv_type,
                              {{"f32", full_cuda_cache_bytes_f32},
                               {"f16", full_cuda_cache_bytes_f16},
                               {"bf16", full_cuda_cache_bytes_bf16}},
                              request, tokens);
}

}  // namespace llama
