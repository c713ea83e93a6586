// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>

#include "tersekv/policy.hpp"
#include "tersekv/selectors/nearest_neighbours.hpp"

namespace tersekv {

namespace detail {
template <class Team, class Head, class Scorer, class Merger>
concept MergesPairs = requires(const Merger& merger, Team& team, const Head& head,
                               const Scorer& scorer, Index n) {
  { merger.norms(n) } -> std::convertible_to<KeyNorms>;
  merger.merge(team, head, scorer, n, n, n);
};
}  // namespace detail

/// The two unprotected entries with the most similar keys (cosine) become one, the older is merged
/// into the later, until the head is within its budget; ties: the pair with the lower older
/// position, then the lower later one.
///
/// The merger says how a pair is merged and keeps the keys' norms, as ZipMerge does (MergerBase).
/// A step costs little more than a pass over the keys, O(n head_dim), as the entry that it merges
/// into is compared with the others next time; a prompt a pass for each token that leaves, and one
/// for three of its tokens.
struct MostSimilarPair : SelectorBase {
  static constexpr bool needs_budget = true;
  Protection protection = {};
  bool operator==(const MostSimilarPair&) const = default;

  void validate(const Shape&, Index budget, Index set_aside) const {
    protection.validate();
    protection.validate_budget(budget, std::max<Index>(set_aside, 1));  // who leaves has a partner
  }
  TERSEKV_HD Index statistics(const Shape&) const { return 2; }
  Index max_length(const Shape&, Index budget, Index /*chunk*/) const { return budget; }

  template <class Team, class Head, class Scorer, class Merger>
  TERSEKV_HD void compress(Team& team, const Head& head, const Scorer& scorer, const Merger& merger,
                           Index column, Index merger_column) const {
    static_assert(
        detail::MergesPairs<Team, Head, Scorer, Merger>,
        "MostSimilarPair: the merger must have norms(column) and merge(team, head, scorer, "
        "victim, target, column), as ZipMerge does");
    if (head.length() <= head.budget()) return;
    const detail::NearestNeighbours<Head> near{
        head, merger.norms(merger_column), column,
        protection.unprotected(head, protection.recent_of(head.budget()))};
    std::int32_t* list = head.scratch().slots;
    Index fresh = near.collect_new(team, list);
    for (;;) {
      near.introduce(team, list, fresh);
      const Index one = near.find_closest(team, list), other = near.neighbour(one);
      const bool older = head.position(one) < head.position(other);
      const Index victim = older ? one : other, target = older ? other : one;
      const Index last = head.length() - 1;
      merger.merge(team, head, scorer, victim, target, merger_column);
      near.forget(team, victim, target, last);
      team.once([&] { list[0] = static_cast<std::int32_t>(victim); });
      remove_entries(team, head, list, 1);
      if (head.length() <= head.budget()) return;  // the merged entry is new until the next time
      team.once([&] { list[0] = static_cast<std::int32_t>(target == last ? victim : target); });
      fresh = 1;
    }
  }
};

}  // namespace tersekv
