// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// The first victims become residual slots; later ones are folded, in order of position, into the
/// slot r = argmax_r <k_r, k_c> whose key has the largest dot product with theirs:
///
///   k_r <- (w_r k_r + k_c) / (w_r + 1), the same for v_r, w_r <- w_r + 1
///
/// (a victim that already stands for several tokens counts with its weight). A slot keeps its
/// position, is never a victim, and is compensated for in attention: logit + alpha ln w.
/// ZSMerge, section 3. O(slots head_dim) per victim.
struct ResidualSlots : MergerBase {
  static constexpr bool uses_weights = true;
  Index residual = kAuto;     ///< slots; kAuto: 2 % of the budget beyond `proximity`, at least 1
  Index proximity = kAuto;    ///< only for that default; kAuto: half of the budget
  float compensation = 1.0f;  ///< alpha, in [0, 1]
  bool operator==(const ResidualSlots&) const = default;

  void validate(const Shape&, Index) const {
    detail::require_count("residual", residual, 0, true);
    detail::require_count("proximity", proximity, 1, true);
    detail::require_between("alpha", compensation, 0.0f, 1.0f);
  }
  float alpha() const { return compensation; }
  TERSEKV_HD Index reserved(Index budget) const {
    if (residual != kAuto) return residual;
    const Index beyond = budget - (proximity == kAuto ? budget / 2 : proximity);
    const Index share = beyond / 50 + (beyond % 50 >= 25 ? 1 : 0);  // 2 %, rounded
    return share < 1 ? 1 : share;
  }

  template <class Team, class Head, class Scorer, class Eligible>
  TERSEKV_HD Index retire(Team& team, const Head& head, const Scorer&, std::int32_t* victims,
                          Index count, const Eligible&, Index /*column*/) const {
    const Index slots = reserved(head.budget());
    team.sort(victims, count,
              [&](std::int32_t a, std::int32_t b) { return head.position(a) < head.position(b); });
    const Index room = slots - head.state().pinned;
    const Index opened = room < count ? room : count;
    team.once([&] {
      for (Index a = 0; a < opened; ++a) open_slot(head, victims + a, count - a);
      for (Index a = opened; a < count; ++a) victims[a - opened] = victims[a];
      if (slots == 0) head.state().counts.evictions += count;
    });
    const Index leaving = count - opened;
    if (slots == 0) return leaving;
    for (Index a = 0; a < leaving; ++a) fold(team, head, victims[a]);
    return leaving;
  }

 private:
  /// Moves the first victim of the list to the next pinned slot; whoever was there takes its place.
  template <class Head>
  TERSEKV_HD static void open_slot(const Head& head, std::int32_t* victims, Index count) {
    const auto slot = static_cast<std::int32_t>(head.state().pinned++);
    if (victims[0] == slot) return;
    head.swap_entries(victims[0], slot);
    for (Index a = 1; a < count; ++a) {
      if (victims[a] == slot) victims[a] = victims[0];
    }
  }

  template <class Team, class Head>
  TERSEKV_HD static void fold(Team& team, const Head& head, Index victim) {
    const Index slots = head.state().pinned;
    float* products = head.scratch().floats;
    const float* key = key_of(team, head, victim);
    team.dot(head, key, slots, products);
    const Index target = team.argmax(
        head, slots, [](Index) { return true; }, [&](Index r) { return products[r]; });
    const float total = head.weight(target) + head.weight(victim);
    // In this form the mean of equal keys is the same key, to the bit, whatever the compiler's
    // flags (with a scale: the same bytes).
    const float share = head.weight(victim) / total;
    team.write_key(head, target, [&](Index j) {
      const float k = head.key(target, j);
      return k + share * (key[j] - k);
    });
    team.write_value(head, target, [&](Index j) {
      const float v = head.value(target, j);
      return v + share * (head.value(victim, j) - v);
    });
    team.once([&] {
      head.set_weight(target, total);
      ++head.state().counts.merges;
    });
  }
};

}  // namespace tersekv
