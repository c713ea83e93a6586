// SPDX-License-Identifier: Apache-2.0
#include "tersekv/policies/h2o.hpp"

#include "policy_set_of.hpp"
#include "tersekv/cuda/runtime.cuh"

namespace tersekv_bench {

using tersekv::cuda::CudaRuntime;
template std::unique_ptr<AnyPolicySet<CudaRuntime>> make_policy_set<CudaRuntime, tersekv::H2O>(
    const PolicyShape&, const std::string&, CudaRuntime::Stream);

}  // namespace tersekv_bench
