// SPDX-License-Identifier: Apache-2.0
#include "layer_caches.hpp"

namespace llama {

std::unique_ptr<LayerCaches> make_caches_f32(const CacheRequest& request) {
  return make_caches_of<PolicyCaches, float>(request);
}

Index full_cache_bytes_f32(const CacheRequest& request, Index tokens) {
  return full_cache_bytes_of<float>(request, tokens);
}

}  // namespace llama
