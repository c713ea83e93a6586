// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <utility>

#include "tersekv/asked_columns.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/policy_parts.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/protection.hpp"
#include "tersekv/team.hpp"

namespace tersekv {

/// Defaults for everything `CachePolicy` asks: a policy that sees nothing and keeps everything.
/// A policy derives from this and replaces what it needs; nothing is virtual. One with a budget
/// says `max_length`, too, or nobody notices that it keeps more.
struct PolicyBase {
  static constexpr Observes observes = Observes::nothing;
  static constexpr bool uses_weights = false;        ///< entries carry weights
  static constexpr bool needs_token_scores = false;  ///< tokens come with a predicted score
  static constexpr bool needs_budget = false;        ///< a cache without a budget is a mistake

  /// Throws std::invalid_argument where the parameters or the budget make no sense.
  void validate(const Shape&, Index /*budget*/) const {}
  /// Four-byte statistics per entry; they start at 0.
  Index statistics(const Shape&) const { return 0; }
  /// Registers of four bytes per head; they start at 0.
  Index registers(const Shape&) const { return 0; }
  /// Exponent of the weights in attention.
  float alpha() const { return 0.0f; }
  /// Entries a head may hold after a compression, where each follows `chunk` new tokens: what
  /// memory is reserved for. More, and more than there were before, is an error in `extend`.
  Index max_length(const Shape&, Index /*budget*/, Index /*chunk*/) const { return kUnlimited; }
  /// How many of the last rows of `rows` new tokens are observed.
  Index observed_rows(Index rows) const { return rows; }
  /// Slots [first, first + count) hold new tokens; `token_scores` is null or [count].
  template <class Team, class Head>
  TERSEKV_HD void append(Team&, const Head&, Index /*first*/, Index /*count*/,
                         const float* /*token_scores*/) const {}
  template <class Team, class Head>
  TERSEKV_HD void observe(Team&, const Head&, const Observation&) const {}
  template <class Team, class Head>
  TERSEKV_HD void compress(Team&, const Head&) const {}
  /// For `KVCache::entries`; higher = keep.
  template <class Head>
  TERSEKV_HD float score(const Head&, Index /*slot*/) const {
    return 0.0f;
  }
};

namespace detail {
/// Of a policy that is made of parts.
template <class P>
constexpr bool parts_fit() {
  if constexpr (requires { P::parts_fit(); }) return P::parts_fit();
  return true;
}
}  // namespace detail

/// What `KVCache` needs of a policy:
///
/// 1. compile-time facts: what it `observes`, whether it `uses_weights`, `needs_token_scores`,
///    `needs_budget`
/// 2. `validate`, `statistics`, `registers`, `alpha`, `max_length`, `observed_rows`: plain numbers
/// 3. `append`, `observe`, `compress`: bodies over a team and a head, called in this order for each
///    new token or chunk; `append` writes nothing but the new entries' columns, which `rewind` lets
///    go, as other workers may be reading older entries; `compress` removes entries with
///    `remove_entries`
/// 4. `score`
///
/// Deriving from `PolicyBase` gives all of them. It need not be a `Policy<Scorer, Selector,
/// Merger>`, keep state of its own (that lives in statistics and registers), or know of sequences,
/// threads or storage types.
template <class P>
concept CachePolicy = std::copyable<P> && detail::parts_fit<P>() &&
    requires(const P& policy, const Shape& shape, Index n, SerialTeam& team,
             const Head<float, float>& head, const HeadView<float, float>& view,
             const Observation& row, const float* scores) {
  { P::observes } -> std::convertible_to<Observes>;
  { P::uses_weights } -> std::convertible_to<bool>;
  { P::needs_token_scores } -> std::convertible_to<bool>;
  { P::needs_budget } -> std::convertible_to<bool>;
  policy.validate(shape, n);
  { policy.statistics(shape) } -> std::convertible_to<Index>;
  { policy.registers(shape) } -> std::convertible_to<Index>;
  { policy.alpha() } -> std::convertible_to<float>;
  { policy.max_length(shape, n, n) } -> std::convertible_to<Index>;
  { policy.observed_rows(n) } -> std::convertible_to<Index>;
  policy.append(team, head, n, n, scores);
  policy.observe(team, head, row);
  policy.compress(team, head);
  { policy.score(head, n) } -> std::convertible_to<float>;
  { policy.score(view, n) } -> std::convertible_to<float>;
};

namespace detail {
/// Whether a policy that derives from PolicyBase and says that it observes something has an
/// `observe`. (One that says it observes nothing may have one: a wrapper of any policy does.)
template <class P>
inline constexpr bool kObservesAsSaid =
    !std::derived_from<P, PolicyBase> || P::observes == Observes::nothing ||
    !inherits_observe<P, PolicyBase>;
}  // namespace detail

/// The key of an entry as floats, in the head's first scratch vector.
template <class Team, class Head>
TERSEKV_HD const float* key_of(Team& team, const Head& head, Index slot) {
  float* key = head.scratch().vectors;
  team.for_each(head.head_dim(), [&](Index j) { key[j] = head.key(slot, j); });
  return key;
}

namespace detail {

/// The lowest i in [0, n) for which `is` is true, as it then is for all higher ones; n if for none.
template <class F>
TERSEKV_HD Index first_true(Index n, F&& is) {
  Index low = 0, high = n;
  while (low < high) {
    const Index middle = low + (high - low) / 2;
    if (is(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace detail

/// Removes the entries in the slots `victims[0, count)`, a list in the head's scratch with room for
/// two entries per live one (sorted on return): the last live entries fill the holes, nothing is
/// shifted. O(count (head_dim + log count)).
template <class Team, class Head>
TERSEKV_HD void remove_entries(Team& team, const Head& head, std::int32_t* victims, Index count) {
  if (count <= 0) return;
  const Index kept = head.length() - count;
  team.sort(victims, count, [](std::int32_t a, std::int32_t b) { return a < b; });
  const Index holes = detail::first_true(count, [&](Index i) { return victims[i] >= kept; });
  // Hole a is filled by sources[a], the a-th highest live slot that does not leave itself: there
  // are as many above it as fill holes before, and `leaving` victims.
  std::int32_t* sources = victims + head.length();
  const Index last = head.length() - 1;
  team.for_each(holes, [&](Index a) {
    const Index leaving = detail::first_true(
        count - holes, [&](Index i) { return victims[count - 1 - i] + i < last - a; });
    sources[a] = static_cast<std::int32_t>(last - a - leaving);
  });
  team.copy_entries(head, sources, victims, holes);
  team.once([&] { head.state().length = kept; });
}

/// A policy made of three parts: *who matters* (Scorer: statistics from what is observed, and a
/// score, higher = keep), *who leaves* (Selector), and *what becomes of them* (Merger). The methods
/// of the literature derive from such combinations (`tersekv/policies/`); others are one line. What
/// each part must be: `tersekv/policy_parts.hpp`.
template <class Scorer, class Selector, class Merger>
class Policy {
 public:
  static constexpr Observes observes = Scorer::observes;
  static constexpr bool uses_weights = Merger::uses_weights;
  static constexpr bool needs_token_scores = Scorer::needs_token_scores;
  static constexpr bool needs_budget = Selector::needs_budget;

  /// Does not compile unless the parts fit. For who uses the policy: a program that includes all of
  /// them and uses one is compiled a thirtieth sooner.
  static constexpr bool parts_fit() {
    static_assert(!std::derived_from<Scorer, ScorerBase> || detail::CanObserve<Scorer>,
                  "Policy: the scorer's observe must be `template <class Team, class Head> void "
                  "observe(Team&, const Head&, const Observation&) const`");
    static_assert(
        ScorerPart<Scorer>,
        "Policy: the first template argument must satisfy tersekv::ScorerPart; derive from "
        "tersekv::ScorerBase and define score(head, slot)");
    constexpr bool observed = !detail::inherits_observe<Scorer, ScorerBase>;
    static_assert(Scorer::observes != Observes::nothing || !observed,
                  "Policy: the scorer has an observe() that would never be called; say what it "
                  "`observes`");
    static_assert(Scorer::observes == Observes::nothing || observed,
                  "Policy: the scorer says what it `observes`, but has no observe(team, head, row) "
                  "of its own");
    static_assert(SelectorPart<Selector, Scorer, Merger>,
                  "Policy: the second template argument must satisfy tersekv::SelectorPart; derive "
                  "from tersekv::SelectorBase and define compress(...)");
    static_assert(
        MergerPart<Merger, Scorer>,
        "Policy: the third template argument must satisfy tersekv::MergerPart; derive from "
        "tersekv::MergerBase and define retire(...), which must accept the scorer");
    return true;
  }

  Policy() = default;
  bool operator==(const Policy&) const = default;
  explicit Policy(Scorer scorer, Selector selector = {}, Merger merger = {})
      : scorer_(std::move(scorer)), selector_(std::move(selector)), merger_(std::move(merger)) {}

  void validate(const Shape& shape, Index budget) const {
    scorer_.validate(shape);
    merger_.validate(shape, budget);
    selector_.validate(shape, budget, merger_.reserved(budget) + merger_.spare());
  }
  Index statistics(const Shape& shape) const {
    return merger_column(shape) + merger_.statistics(shape);
  }
  Index registers(const Shape& shape) const { return scorer_.registers(shape); }
  float alpha() const { return merger_.alpha(); }
  Index max_length(const Shape& shape, Index budget, Index chunk) const {
    return selector_.max_length(shape, budget, chunk);
  }
  Index observed_rows(Index rows) const { return scorer_.observed_rows(rows); }

  template <class Team, class Head>
  TERSEKV_HD void append(Team& team, const Head& head, Index first, Index count,
                         const float* token_scores) const {
    scorer_.append(team, head, first, count, token_scores);
    merger_.append(team, head, first, count, merger_column(head.shape()));
  }
  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    scorer_.observe(team, head, row);
  }
  template <class Team, class Head>
  TERSEKV_HD void compress(Team& team, const Head& head) const {
    selector_.compress(team, head, scorer_, merger_, scorer_.statistics(head.shape()),
                       merger_column(head.shape()));
  }
  template <class Head, class Slot>
  TERSEKV_HD float score(const Head& head, Slot slot) const {
    return scorer_.score(head, slot);
  }

  const Scorer& scorer() const { return scorer_; }
  const Selector& selector() const { return selector_; }
  const Merger& merger() const { return merger_; }

 private:
  // An entry's statistics: the scorer's columns first, then the selector's, then the merger's.
  TERSEKV_HD Index merger_column(const Shape& shape) const {
    return scorer_.statistics(shape) + selector_.statistics(shape);
  }

  // Empty parts take a byte: with [[no_unique_address]] nvcc 13 lays kernels' arguments out
  // otherwise than the host that fills them.
  Scorer scorer_;
  Selector selector_;
  Merger merger_;
};

}  // namespace tersekv
