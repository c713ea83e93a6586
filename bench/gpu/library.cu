// SPDX-License-Identifier: Apache-2.0
#include "tersekv/cuda/runtime.cuh"

namespace tersekv_bench {
using Device = tersekv::cuda::CudaRuntime;
}  // namespace tersekv_bench

#include "library.hpp"
