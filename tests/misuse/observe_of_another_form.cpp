// SPDX-License-Identifier: Apache-2.0
// A scorer that observes, but not what it is shown, is told how.
// expect: the scorers observe must be template <class Team, class Head> void observe(Team&, const
// Head&, const Observation&) const
#include <tersekv/tersekv.hpp>

struct Hasty : tersekv::ScorerBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
  template <class Team, class Head>
#ifdef TERSEKV_FIXED
  void observe(Team&, const Head&, const tersekv::Observation&) const {
  }
#else
  void observe(Team&, const Head&, const float*) const {
  }
#endif
  template <class Head>
  float score(const Head&, tersekv::Index) const {
    return 0;
  }
};

using Chosen = tersekv::Policy<Hasty, tersekv::LowestScore, tersekv::Drop>;
void use(tersekv::KVCache<Chosen>& cache) { cache.clear(); }
