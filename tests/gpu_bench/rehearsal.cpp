// SPDX-License-Identifier: Apache-2.0
// The library of the GPU benchmarks over a device on the host, so that what it hands to
// kernels, and the whole harness above it, are tested where there is no GPU.
#include "cuda/host_runtime.hpp"

namespace tersekv_bench {
using Device = host_cuda::Runtime;
}  // namespace tersekv_bench

#include "library.hpp"
#include "policy_set_of.hpp"
