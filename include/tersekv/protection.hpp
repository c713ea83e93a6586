// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/head_view.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

/// Whether the entries in a head's slots may leave: those at positions [first, end), and not in
/// pinned slots.
template <class Head>
struct Unprotected {
  const Head& head;
  std::int32_t first, end;

  template <class Slot>
  TERSEKV_HD bool operator()(Slot slot) const {
    // Without branches and in 32 bits, as this runs for every entry of every step: no position or
    // slot needs more.
    const std::int32_t position = narrow(head.position(slot));
    const bool between = detail::both(position >= first, position < end);
    return detail::both(narrow(Index{slot}) >= narrow(head.state().pinned), between);
  }
  template <bool whole, class Ints = simd::Ints>
  TERSEKV_HD Ints operator()(const SlotVector<whole>& slots) const {
    const Ints position = head.position(slots);
    const Ints between = (position >= first) & (position < end);
    return between & (simd::lane_numbers() >= narrow(head.state().pinned - Index{slots}));
  }

 private:
  TERSEKV_HD static std::int32_t narrow(Index x) { return static_cast<std::int32_t>(x); }
};

/// Who may not be a victim, said once for all selectors: the first `sinks` tokens and the latest
/// `recent` ones. Where `recent` is left to the method, `rule` derives it from the budget B.
struct Protection {
  enum class Rule { half, half_rounded_up, half_less_sinks };
  Index sinks = 0;
  Index recent = kAuto;
  Rule rule = Rule::half;
  bool operator==(const Protection&) const = default;

  TERSEKV_HD Index recent_of(Index budget) const {
    if (recent != kAuto) return recent;
    switch (rule) {
      case Rule::half_rounded_up:
        return budget / 2 + budget % 2;
      case Rule::half_less_sinks:
        return budget / 2 - sinks > 1 ? budget / 2 - sinks : 1;
      default:
        return budget / 2;
    }
  }
  /// Throws std::invalid_argument for parameters out of range.
  void validate() const {
    detail::require_count("sinks", sinks, 0);
    detail::require_count("recent", recent, 0, true);
  }
  /// The same for a budget that cannot hold the protected entries and `set_aside` others.
  void validate_budget(Index budget, Index set_aside) const {
    detail::require(budget >= 1, "budget", "at least 1", budget);
    const Index needed = sinks + recent_of(budget) + set_aside;
    if (budget >= needed) return;
    detail::refuse({"budget"},
                   {"room for ", needed, " entries (", sinks, " sinks, ", recent_of(budget),
                    " recent, ", set_aside, " for the merger; protect fewer, or raise it)"},
                   {budget});
  }
  /// Says of a head's slots whether their entries may leave, for as long as it has seen no more
  /// tokens.
  template <class Head>
  TERSEKV_HD Unprotected<Head> unprotected(const Head& head, Index recent_entries) const {
    return {head, clamped(sinks), clamped(head.tokens_seen() - recent_entries)};
  }

 private:
  /// A bound that leaves the same positions on either side.
  TERSEKV_HD static std::int32_t clamped(Index x) {
    return static_cast<std::int32_t>(x < 0 ? 0 : (x > kMostTokens ? kMostTokens : x));
  }
};

}  // namespace tersekv
