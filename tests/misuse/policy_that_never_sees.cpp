// SPDX-License-Identifier: Apache-2.0
// A whole policy with an observe() must say what it observes.
// expect: a policy must say what it `observes`
#include <tersekv/tersekv.hpp>

struct Watching : tersekv::PolicyBase {
#ifdef TERSEKV_FIXED
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
#endif
  tersekv::Index statistics(const tersekv::Shape&) const { return 1; }
  template <class Team, class Head>
  void observe(Team& team, const Head& head, const tersekv::Observation& row) const {
    team.for_each(row.visible, [&](tersekv::Index i) { head.stat(0, i) = row.attention[i]; });
  }
};

void use(tersekv::KVCache<Watching>& cache) { cache.clear(); }
