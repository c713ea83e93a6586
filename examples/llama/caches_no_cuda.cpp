// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "layer_caches.hpp"

// In the place of caches_cuda.cu where the program is built without CUDA.
namespace llama {
namespace {

[[noreturn]] void refuse() {
  throw std::invalid_argument(
      "--device cuda: this program is built without CUDA (cmake -DTERSEKV_BUILD_CUDA=ON)");
}

}  // namespace

std::unique_ptr<LayerCaches> make_cuda_caches(const CacheRequest&) { refuse(); }

Index full_cuda_cache_bytes(const CacheRequest&, Index) { refuse(); }

}  // namespace llama
