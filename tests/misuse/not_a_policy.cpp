// SPDX-License-Identifier: Apache-2.0
// A type that is no policy is refused with the concept's name and the way out.
// expect: KVCache: the first template argument must satisfy tersekv::CachePolicy
// expect: derive from tersekv::PolicyBase
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Chosen = tersekv::Full;
#else
struct Chosen {
  int nothing_a_policy_needs = 0;
};
#endif

tersekv::KVCache<Chosen>* cache = nullptr;

void use() { cache->clear(); }
