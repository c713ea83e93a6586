// SPDX-License-Identifier: Apache-2.0
// KeepKV looks at logits, so attention rows are no use to it; it is shown the queries.
// expect: no matching function for call to | no matching member function for call to observe
// expect: PolicyType::observes
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Shown = tersekv::TokenView<const float>;
#else
using Shown = tersekv::AttentionRows<const float>;
#endif

void use(tersekv::KVCache<tersekv::KeepKV>& cache, const Shown& shown) { cache.observe(0, shown); }
