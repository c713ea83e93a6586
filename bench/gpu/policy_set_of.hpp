// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

#include "policy_set.hpp"

namespace tersekv_bench {

template <class Runtime, class PolicyType>
std::unique_ptr<AnyPolicySet<Runtime>> make_policy_set(const PolicyShape& shape,
                                                       const std::string& dtype,
                                                       typename Runtime::Stream stream) {
  if (dtype == "half") {
    return std::make_unique<PolicySet<Runtime, PolicyType, tersekv::Half>>(shape, stream);
  }
  if (dtype == "bfloat16") {
    return std::make_unique<PolicySet<Runtime, PolicyType, tersekv::BFloat16>>(shape, stream);
  }
  throw std::invalid_argument("dtype: expected half or bfloat16, got " + dtype);
}

}  // namespace tersekv_bench
