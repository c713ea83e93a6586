// SPDX-License-Identifier: Apache-2.0
// A scorer that says what it observes has an observe() that is called so.
// expect: has no observe(team, head, row) of its own
#include <tersekv/tersekv.hpp>

struct Watching : tersekv::ScorerBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
  tersekv::Index statistics(const tersekv::Shape&) const { return 1; }
  template <class Team, class Head>
#ifdef TERSEKV_FIXED
  void observe(Team& team, const Head& head, const tersekv::Observation& row) const {
#else
  void obserev(Team& team, const Head& head, const tersekv::Observation& row) const {
#endif
      team.for_each(row.visible, [&](tersekv::Index i) { head.stat(0, i) = row.attention[i]; });
} template <class Head>
float score(const Head& head, tersekv::Index slot) const {
  return head.stat(0, slot);
}
}
;

using Chosen = tersekv::Policy<Watching, tersekv::LowestScore, tersekv::Drop>;
void use(tersekv::KVCache<Chosen>& cache) { cache.clear(); }
