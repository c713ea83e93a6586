// SPDX-License-Identifier: Apache-2.0
// A score is also asked of a cache that is const: it may only read.
// expect: the first template argument must satisfy tersekv::ScorerPart
// expect: scorer.score(view, n)
#include <tersekv/tersekv.hpp>

struct Nosy : tersekv::ScorerBase {
#ifdef TERSEKV_FIXED
  template <class Head>
  float score(const Head& head, tersekv::Index slot) const {
    return head.weight(slot);
  }
#else
  float score(const tersekv::Head<float, float>& head, tersekv::Index slot) const {
    return head.weight(slot);
  }
#endif
};

using Chosen = tersekv::Policy<Nosy, tersekv::LowestScore, tersekv::Drop>;
void use(tersekv::KVCache<Chosen>& cache) { cache.clear(); }
