// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/key_norms.hpp"
#include "tersekv/policy.hpp"

namespace tersekv::detail {

/// For every unprotected entry, the most similar of the unprotected entries there were when it
/// looked, kept up to date in two columns of the statistics: the similarity, and the neighbour's
/// slot + 1. Of two entries whoever looked later has looked at the other, so the highest similarity
/// of all is the closest pair's, and none need hear of those that come later.
///
/// An entry is *new* until it has looked, which may wait until somebody asks for the closest pair;
/// so is one whose key a merge has changed. An entry whose neighbour is gone is *stale*: it keeps
/// the old similarity as an upper bound and looks again only if that bound is the highest of all.
/// Several look in one pass over the keys.
template <class Head>
struct NearestNeighbours {
  const Head& head;
  KeyNorms norms;
  Index column;
  Unprotected<Head> eligible;

  TERSEKV_HD bool is_stale(Index i) const { return link(i) == kStale; }
  TERSEKV_HD Index neighbour(Index i) const { return link(i) - 1; }

  /// The unprotected entries that are new, ascending, into `slots` (room for n); how many.
  template <class Team>
  TERSEKV_HD Index collect_new(Team& team, std::int32_t* slots) const {
    const auto wanted = [&](auto i) {
      return both(eligible(i), head.int_stat(column + 1, i) == kNew);
    };
    return team.collect(asking_for<Team>(head, links()), head.length(), OfVectors{wanted}, slots);
  }
  /// The new entries `slots[0, count)`, a list with room for n, look. Where the last pass over the
  /// keys has room for one more, the stale entry that is bounded highest looks again, as that is
  /// likely to be asked for.
  template <class Team>
  TERSEKV_HD void introduce(Team& team, std::int32_t* slots, Index count) const {
    for (Index done = 0; done < count; done += Scratch::kRows) {
      Index rows = count - done;
      if (rows < Scratch::kRows) {
        const Index top = closest(team);
        if (top >= 0 && is_stale(top)) {
          team.once([&] { slots[count] = static_cast<std::int32_t>(top); });
          ++rows;
        }
      }
      look_up(team, slots + done, rows < Scratch::kRows ? rows : Scratch::kRows);
    }
  }
  /// An entry of the closest pair, after all stale ones that might be closer have looked again;
  /// ties: the pair with the lower older position, then the lower later one. None is new. `slots`:
  /// room for one.
  template <class Team>
  TERSEKV_HD Index find_closest(Team& team, std::int32_t* slots) const {
    for (;;) {
      const Index one = closest(team);
      if (!is_stale(one)) return one;
      team.once([&] { slots[0] = static_cast<std::int32_t>(one); });
      look_up(team, slots, 1);
    }
  }
  /// `victim` leaves, `target` is new, the entry in slot `last` moves to the victim's.
  template <class Team>
  TERSEKV_HD void forget(Team& team, Index victim, Index target, Index last) const {
    const std::int32_t gone = name(victim), changed = name(target), moved = name(last);
    const auto& asked = asking_for<Team>(head, {.first = column + 1, .last = column + 2});
    team.for_each_entry(asked, head.length(), [&](auto i) {
      const std::int32_t now = link(i), then = now == moved ? gone : now;
      const bool stale = (now == gone) | (now == changed);
      link(i) = stale ? kStale : then;
    });
    team.once([&] { link(target) = kNew; });
  }

 private:
  static constexpr std::int32_t kNew = 0;     // the column's initial value
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

  /// Whether entries are unprotected and not new.
  template <class Slot>
  TERSEKV_HD auto is_known(Slot i) const {
    return both(eligible(i), head.int_stat(column + 1, i) != kNew);
  }
  /// Of the known entries the one with the highest similarity, or bound, or -1. Of equal ones a
  /// stale one: it must be looked at before a tie is decided.
  template <class Team>
  TERSEKV_HD Index closest(Team& team) const {
    return team.argmin(asking_for<Team>(head, links()), head.length(),
                       OfVectors{[&](auto i) { return is_known(i); }},
                       OfVectors{[&](auto i) { return -head.stat(column, i); }},
                       [&](Index i) -> Index {
                         if (neighbour(i) < 0) return -1;  // stale
                         const Index a = head.position(i), b = head.position(neighbour(i));
                         return a < b ? a << 32 | b : b << 32 | a;
                       });
  }
  /// The entries `slots[0, rows)`, new or stale, look for their neighbours.
  template <class Team>
  TERSEKV_HD void look_up(Team& team, const std::int32_t* slots, Index rows) const {
    const Index stride = (head.length() + head.page_size() - 1) & -head.page_size();
    const float* products = norms.products(team, head, slots, rows, stride);
    for (Index r = 0; r < rows; ++r, products += stride) {
      const Index slot = slots[r];
      const Index best = norms.most_similar(team, head, slot, products, OfVectors{eligible});
      team.once([&] {
        similarity(slot) = best < 0 ? -2.0f : norms.of_pair(head, slot, best, products[best]);
        link(slot) = best < 0 ? kStale : name(best);
      });
    }
  }
};

}  // namespace tersekv::detail
