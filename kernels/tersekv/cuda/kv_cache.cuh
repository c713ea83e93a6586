// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/cuda/basic_kv_cache.hpp"
#include "tersekv/cuda/runtime.cuh"

namespace tersekv::cuda {

/// The compressed KV cache of one attention layer on the current CUDA device: see BasicKVCache.
/// `Dims`: the head_dims it is compiled for; naming those you have saves compile time.
template <class PolicyType, Element KeyCodec = Half, Element ValueCodec = KeyCodec,
          class Dims = AllHeadDims>
using KVCache = BasicKVCache<PolicyType, KeyCodec, ValueCodec, CudaRuntime, Dims>;

using PagePool = BasicPagePool<CudaRuntime>;
using Workspace = BasicWorkspace<CudaRuntime>;

}  // namespace tersekv::cuda
