// SPDX-License-Identifier: Apache-2.0
// A number written for several entries at once would end up in one of them.
// expect: expected a vector, got a number
#include <tersekv/tersekv.hpp>

struct Latest : tersekv::ScorerBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
  tersekv::Index statistics(const tersekv::Shape&) const { return 1; }
  template <class Team, class Head>
  void observe(Team& team, const Head& head, const tersekv::Observation& row) const {
    team.for_each_vector(head, row.visible, [&](auto slot) {
#ifdef TERSEKV_FIXED
      head.set_stat(0, slot, tersekv::element_at(row.attention, slot));
#else
      head.set_stat(0, slot, row.attention[slot]);
#endif
    });
  }
  template <class Head>
  float score(const Head& head, tersekv::Index slot) const {
    return head.stat(0, slot);
  }
};

void step(tersekv::KVCache<tersekv::Policy<Latest, tersekv::LowestScore, tersekv::Drop>>& cache,
          const tersekv::Chunk<float>& chunk) {
  cache.extend(chunk);
}
