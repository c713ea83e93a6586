// SPDX-License-Identifier: Apache-2.0
// A whole policy that says what it observes has an observe() that is called so.
// expect: has no observe(team, head, row) of its own
#include <tersekv/tersekv.hpp>

struct Watching : tersekv::PolicyBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
#ifdef TERSEKV_FIXED
  template <class Team, class Head>
  void observe(Team&, const Head&, const tersekv::Observation&) const {}
#endif
};

void use(tersekv::KVCache<Watching>& cache) { cache.clear(); }
