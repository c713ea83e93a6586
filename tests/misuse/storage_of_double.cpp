// SPDX-License-Identifier: Apache-2.0
// Keys and values are stored through a Codec; there is none for double.
// expect: Element
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Stored = tersekv::BFloat16;
#else
using Stored = double;
#endif

void use(tersekv::KVCache<tersekv::Full, Stored>& cache) { cache.clear(); }
