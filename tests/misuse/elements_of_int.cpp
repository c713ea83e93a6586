// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values are float, Half or BFloat16.
// expect: Element
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Number = tersekv::Half;
#else
using Number = int;
#endif

void use(tersekv::KVCache<tersekv::Full>& cache, tersekv::TokenView<const Number> q,
         tersekv::TokenView<const Number> k, tersekv::TokenView<const Number> v,
         tersekv::TokenView<Number> out) {
  cache.extend<Number>(q, k, v, out);
}
