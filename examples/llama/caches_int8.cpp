// SPDX-License-Identifier: Apache-2.0
#include "layer_caches.hpp"

namespace llama {

std::unique_ptr<LayerCaches> make_caches_int8(const CacheRequest& request) {
  return make_caches_of<PolicyCaches, tersekv::Int8>(request);
}

Index full_cache_bytes_int8(const CacheRequest& request, Index tokens) {
  return full_cache_bytes_of<tersekv::Int8>(request, tokens);
}

}  // namespace llama
