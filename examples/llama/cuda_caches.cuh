// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tersekv/cuda/kv_cache.cuh>

#include "device_caches.hpp"

namespace llama {

/// On the current CUDA device. The head_dims are those that models of this kind have; every other
/// one would cost compile time.
template <class Policy, class Codec>
using CudaCaches =
    DeviceCaches<tersekv::cuda::CudaRuntime, tersekv::cuda::HeadDims<64, 128>, Policy, Codec>;

}  // namespace llama
