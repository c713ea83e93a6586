// SPDX-License-Identifier: Apache-2.0
// A scorer that defines observe() must say what it observes.
// expect: the scorer has an observe() that would never be called
#include <tersekv/tersekv.hpp>

struct Watching : tersekv::ScorerBase {
#ifdef TERSEKV_FIXED
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
#endif
  tersekv::Index statistics(const tersekv::Shape&) const { return 1; }
  template <class Team, class Head>
  void observe(Team& team, const Head& head, const tersekv::Observation& row) const {
    team.for_each(row.visible, [&](tersekv::Index i) { head.stat(0, i) = row.attention[i]; });
  }
  template <class Head>
  float score(const Head& head, tersekv::Index slot) const {
    return head.stat(0, slot);
  }
};

using Chosen = tersekv::Policy<Watching, tersekv::LowestScore, tersekv::Drop>;
void use(tersekv::KVCache<Chosen>& cache) { cache.clear(); }
