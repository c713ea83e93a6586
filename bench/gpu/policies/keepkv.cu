// SPDX-License-Identifier: Apache-2.0
#include "tersekv/policies/keepkv.hpp"

#include "policy_set_of.hpp"
#include "tersekv/cuda/runtime.cuh"

namespace tersekv_bench {

using tersekv::cuda::CudaRuntime;
template std::unique_ptr<AnyPolicySet<CudaRuntime>> make_policy_set<CudaRuntime, tersekv::KeepKV>(
    const PolicyShape&, const std::string&, CudaRuntime::Stream);

}  // namespace tersekv_bench
