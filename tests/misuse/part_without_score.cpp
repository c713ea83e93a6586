// SPDX-License-Identifier: Apache-2.0
// A part that lacks what only it can say is refused by name.
// expect: the first template argument must satisfy tersekv::ScorerPart
// expect: scorer.score(head, n)
#include <tersekv/tersekv.hpp>

struct Mute : tersekv::ScorerBase {
#ifdef TERSEKV_FIXED
  template <class Head>
  float score(const Head&, tersekv::Index) const {
    return 0;
  }
#endif
};

using Chosen = tersekv::Policy<Mute, tersekv::LowestScore, tersekv::Drop>;
void use(tersekv::KVCache<Chosen>& cache) { cache.clear(); }
