// SPDX-License-Identifier: Apache-2.0
#include "attention_instances.hpp"

namespace tersekv::detail {

template class AttentionPass<Head<float, float>>;
template class AttentionPass<Head<Half, Half>>;
template class AttentionPass<Head<BFloat16, BFloat16>>;
template class AttentionPass<Head<Int8, Int8>>;

}  // namespace tersekv::detail
