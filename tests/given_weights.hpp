// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.hpp"
#include "tersekv/kv_cache.hpp"

namespace support {

/// A policy for tests of attention itself: tokens bring their weights (as token scores), and
/// `compress` evicts the entry at one position.
struct GivenWeights : tersekv::PolicyBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
  static constexpr bool uses_weights = true;
  static constexpr bool needs_token_scores = true;
  float exponent = 1.0f;
  tersekv::Index leaving = -1;

  float alpha() const { return exponent; }
  template <class Team, class Head>
  TERSEKV_HD void append(Team& team, const Head& head, tersekv::Index first, tersekv::Index count,
                         const float* weights) const {
    team.for_each(count, [&](tersekv::Index i) { head.set_weight(first + i, weights[i]); });
  }
  /// Attention is worked out for it, and looked at by nobody.
  template <class Team, class Head>
  TERSEKV_HD void observe(Team&, const Head&, const tersekv::Observation&) const {}
  template <class Team, class Head>
  TERSEKV_HD void compress(Team& team, const Head& head) const {
    std::int32_t* victims = head.scratch().slots;
    const tersekv::Index found = team.collect(
        head, head.length(), [&](tersekv::Index i) { return head.position(i) == leaving; },
        victims);
    remove_entries(team, head, victims, found);
  }
};
static_assert(tersekv::CachePolicy<GivenWeights>);

/// An entry as the reference takes it.
struct ReferenceEntry {
  reference::Vector key, value;
  double weight = 1;
};

/// What a head holds, in order of position, as the reference takes it.
template <class Cache>
std::vector<ReferenceEntry> reference_entries(Cache& cache, tersekv::Index kv_head) {
  std::vector<ReferenceEntry> entries;
  for (const tersekv::Entry& entry : cache.entries(0, kv_head)) {
    entries.push_back({{entry.key.begin(), entry.key.end()},
                       {entry.value.begin(), entry.value.end()},
                       entry.weight});
  }
  return entries;
}

}  // namespace support
