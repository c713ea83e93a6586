// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/key_norms.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// For every unprotected entry, the unprotected entry with the most similar key, kept up to date in
/// two columns of the statistics: the similarity, and the neighbour's slot + 1.
///
/// A new entry, or one whose key a merge has changed, costs one pass over the keys, which also
/// offers it to all others. An entry whose neighbour is gone keeps the old similarity as an upper
/// bound and looks again only if that bound is the highest of all.
template <class Head>
struct NearestNeighbours {
  const Head& head;
  KeyNorms norms;
  Index column;
  Unprotected<Head> eligible;

  template <class Slot>
  TERSEKV_HD bool is_new(Slot i) const {
    return link(i) == kNew;
  }
  TERSEKV_HD bool is_stale(Index i) const { return link(i) == kStale; }
  TERSEKV_HD Index neighbour(Index i) const { return link(i) - 1; }

  /// Finds the nearest neighbour of `slot` and offers `slot` to all others. `ties`: room for n.
  template <class Team>
  TERSEKV_HD void introduce(Team& team, Index slot, std::int32_t* ties) const {
    const float* near = norms.similarities(team, head, slot);
    const auto offered = [&](auto i) {
      return both(both(Index{i} != slot, eligible(i)), !is_new(i));
    };
    // Ties are few, and apart, so that the loop over all has no branch.
    const auto& asked = asking_for<Team>(head, links());
    const Index equals = team.collect(
        asked, head.length(), [&](auto i) { return both(offered(i), near[i] == similarity(i)); },
        ties);
    team.for_each(equals, [&](Index a) {
      const Index i = ties[a];
      if (!is_stale(i) && head.position(slot) < head.position(neighbour(i))) link(i) = name(slot);
    });
    team.for_each_entry(asked, head.length(), [&](auto i) {
      const bool nearer = both(offered(i), near[i] > similarity(i));
      link(i) = nearer ? name(slot) : link(i);
      similarity(i) = choose(nearer, near[i], similarity(i));
    });
    link_nearest(team, slot, near);
  }
  /// Looks for the nearest neighbour of `slot` again.
  template <class Team>
  TERSEKV_HD void search(Team& team, Index slot) const {
    link_nearest(team, slot, norms.similarities(team, head, slot));
  }
  /// An entry of the closest pair, or a stale one that might be; ties: the pair with the lower
  /// older position, then the lower later one.
  template <class Team>
  TERSEKV_HD Index closest(Team& team) const {
    return team.argmax(
        asking_for<Team>(head, links()), head.length(), [&](auto i) { return eligible(i); },
        [&](auto i) { return similarity(i); },
        [&](Index i) -> Index {
          if (is_stale(i)) return -1;  // must be looked at before a tie is decided
          const Index a = head.position(i), b = head.position(neighbour(i));
          return a < b ? a << 32 | b : b << 32 | a;
        });
  }
  /// `victim` leaves, `target` changes, the entry in slot `last` moves to the victim's.
  template <class Team>
  TERSEKV_HD void forget(Team& team, Index victim, Index target, Index last) const {
    const std::int32_t gone = name(victim), changed = name(target), moved = name(last);
    const auto& asked = asking_for<Team>(head, {.first = column + 1, .last = column + 2});
    team.for_each_entry(asked, head.length(), [&](auto i) {
      const std::int32_t now = link(i), then = now == moved ? gone : now;
      const bool stale = (now == gone) | (now == changed);
      link(i) = stale ? kStale : then;
    });
  }

 private:
  static constexpr std::int32_t kNew = 0;     // never introduced: the column's initial value
  static constexpr std::int32_t kStale = -1;  // the neighbour is gone; similarity: an upper bound

  TERSEKV_HD Columns links() const {
    return {.positions = true, .first = column, .last = column + 2};
  }
  /// How a link names a slot.
  TERSEKV_HD static std::int32_t name(Index slot) { return static_cast<std::int32_t>(slot + 1); }
  template <class Slot>
  TERSEKV_HD float& similarity(Slot i) const {
    return head.stat(column, i);
  }
  template <class Slot>
  TERSEKV_HD std::int32_t& link(Slot i) const {
    return head.int_stat(column + 1, i);
  }

  template <class Team>
  TERSEKV_HD void link_nearest(Team& team, Index slot, const float* near) const {
    const Index best = team.argmax(
        asking_for<Team>(head, {.positions = true}), head.length(),
        [&](auto i) { return both(Index{i} != slot, eligible(i)); },
        [&](Index i) { return near[i]; });
    team.once([&] {
      similarity(slot) = best < 0 ? -2.0f : near[best];
      link(slot) = best < 0 ? kStale : name(best);
    });
  }
};

}  // namespace tersekv::detail
