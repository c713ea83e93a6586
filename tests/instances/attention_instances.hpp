// SPDX-License-Identifier: Apache-2.0
#pragma once

// Before all else in every file of a test program that says so (CMakeLists.txt): attention is
// compiled once for the program, in attention_instances.cpp, not once a file.

#include "tersekv/attention.hpp"
#include "tersekv/head.hpp"

namespace tersekv::detail {

extern template class AttentionPass<Head<float, float>>;
extern template class AttentionPass<Head<Half, Half>>;
extern template class AttentionPass<Head<BFloat16, BFloat16>>;
extern template class AttentionPass<Head<Int8, Int8>>;

}  // namespace tersekv::detail
