// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/team.hpp"

// The three parts of a `Policy<Scorer, Selector, Merger>`: what each is asked for, and bases that
// answer everything it need not say. A part has no state of its own beside its parameters: what it
// remembers of an entry lies in the entry's statistics, four bytes each, which start at 0, and what
// a scorer remembers of a head in the head's registers. Its bodies are templates over a team
// (`tersekv/team.hpp`) and a head. `Policy` gives the scorer the statistics from column 0 on, then
// the selector, then the merger; these two are told their first column.
//
// Bodies that are to run on a GPU as well are marked TERSEKV_HD (nothing without nvcc) and call
// nothing that is the host's alone; the part is trivially copyable. A part with parameters says
// that it is equal where they are, `bool operator==(const Part&) const = default;`: copies from
// cache to cache ask (`copy_sequence`).
//
// While writing a part, compile all of a program with TERSEKV_CHECKED defined: a statistic,
// register or slot that is not there then throws std::logic_error.

namespace tersekv {

/// What a policy wants to see of a query.
enum class Observes {
  nothing,    ///< attention is not even reduced
  attention,  ///< one number per entry, reduced over the query heads of the group
  logits      ///< scaled logits per query head, without the weights' bias, with lse and query
};

/// One query token's row, as a policy observes it. Entries in slots [0, visible) existed then.
struct Observation {
  Index visible = 0;
  bool first = false;                ///< the first observed row of a call
  const float* attention = nullptr;  ///< [visible], for Observes::attention
  const float* logits = nullptr;     ///< [group_size, logit_stride], for Observes::logits
  Index logit_stride = 0;
  const float* lse = nullptr;    ///< [group_size], for Observes::logits
  const float* query = nullptr;  ///< [group_size, head_dim], for Observes::logits
};

/// *Who matters.* A scorer derives from this, replaces what it needs, and adds
///
///   template <class Head> float score(const Head& head, Index slot) const;   // higher = keep
///
/// which only reads: it is also asked about a `HeadView`. Where a score takes long, it may add
///
///   template <class Head> float least_score(const Head& head, Index slot) const;   // <= score
///
/// which selectors that look for one victim ask for first. All may take any slot and return what
/// becomes of it, as the library's do: with a SlotVector many scores are worked out at a time.
/// Where `least_score` takes a while itself and takes a SlotVector, a `rough_score` that does, too,
/// looser and quicker (<= score), is asked for before it.
///
///   template <class Head, class Slot>
///   auto score(const Head& head, Slot slot) const { return 2.0f * head.stat(0, slot); }
///
/// A merger that changes an entry's key or value leaves its statistics as they are, but for one
/// that is made for its scorer (ZipMerge), so what depends on them is better worked out in `score`,
/// or in `prepare`.
struct ScorerBase {
  bool operator==(const ScorerBase&) const = default;
  static constexpr Observes observes = Observes::nothing;  ///< what `observe` wants to see
  static constexpr bool needs_token_scores = false;        ///< `Chunk::token_scores`, in `append`
  /// Throws std::invalid_argument for parameters out of range.
  void validate(const Shape&) const {}
  /// How many statistics every entry has for this part.
  TERSEKV_HD Index statistics(const Shape&) const { return 0; }
  /// How many registers every head has.
  Index registers(const Shape&) const { return 0; }
  /// How many of the last rows of `rows` new tokens are observed.
  Index observed_rows(Index rows) const { return rows; }
  /// Slots [first, first + count) hold new tokens, whose columns alone may be written;
  /// `token_scores` is null or [count].
  template <class Team, class Head>
  TERSEKV_HD void append(Team&, const Head&, Index /*first*/, Index /*count*/,
                         const float* /*token_scores*/) const {}
  /// A query's row, `element_at(row.attention, slot)` an entry's; never called where `observes` is
  /// Observes::nothing.
  template <class Team, class Head>
  TERSEKV_HD void observe(Team&, const Head&, const Observation&) const {}
  /// Called once before victims are chosen, for what need not be kept up to date in between.
  template <class Team, class Head>
  TERSEKV_HD void prepare(Team&, const Head&) const {}
};

/// *Who leaves.* A selector derives from this, replaces what it needs, and adds
///
///   template <class Team, class Head, class Scorer, class Merger>
///   void compress(Team& team, const Head& head, const Scorer& scorer, const Merger& merger,
///                 Index column, Index merger_column) const;
///
/// which chooses victims, hands them to `merger.retire`, and removes those that it returns with
/// `remove_entries`; victims leave one at a time where `Merger::changes_scores`. Before it asks for
/// scores it calls `scorer.prepare`.
struct SelectorBase {
  bool operator==(const SelectorBase&) const = default;
  static constexpr bool needs_budget = false;  ///< a cache without a budget is a mistake
  /// Throws std::invalid_argument for parameters or a budget that make no sense; `set_aside`
  /// entries of the budget are the merger's.
  void validate(const Shape&, Index /*budget*/, Index /*set_aside*/) const {}
  TERSEKV_HD Index statistics(const Shape&) const { return 0; }
  /// Entries a head may hold after a compression, where each follows `chunk` new tokens: what
  /// memory is reserved for where one call compresses several times. More, and more than there
  /// were before, is an error in `extend`.
  Index max_length(const Shape&, Index /*budget*/, Index /*chunk*/) const { return kUnlimited; }
};

/// *What becomes of those who leave.* A merger derives from this, replaces what it needs, and adds
///
///   template <class Team, class Head, class Scorer, class Eligible>
///   Index retire(Team& team, const Head& head, const Scorer& scorer, std::int32_t* victims,
///                Index count, const Eligible& eligible, Index column) const;
///
/// which deals with the entries in the slots `victims[0, count)`, in the order in which they leave,
/// counts them as evictions or merges, and returns how many of the list are to be removed.
/// `eligible(slot)` says whether an entry is unprotected. Behind the list there is room for three
/// more of `head.length()`. For a selector of pairs (MostSimilarPair) it also adds, as ZipMerge
/// does,
///
///   KeyNorms norms(Index column) const;   // where `append` and `merge` keep the keys' norms
///   template <class Team, class Head, class Scorer>
///   void merge(Team& team, const Head& head, const Scorer& scorer, Index victim, Index target,
///              Index column) const;       // the victim is then removed by who calls
struct MergerBase {
  bool operator==(const MergerBase&) const = default;
  static constexpr bool uses_weights = false;  ///< entries carry weights
  /// Merging changes scores, so victims must be chosen one at a time.
  static constexpr bool changes_scores = false;
  void validate(const Shape&, Index /*budget*/) const {}
  TERSEKV_HD Index statistics(const Shape&) const { return 0; }
  /// Exponent of the weights in attention.
  float alpha() const { return 0.0f; }
  /// Entries of the budget that the merger keeps for itself, in the pinned slots.
  TERSEKV_HD Index reserved(Index /*budget*/) const { return 0; }
  /// Unprotected entries that must remain for the merger to have a target.
  Index spare() const { return 0; }
  template <class Team, class Head>
  TERSEKV_HD void append(Team&, const Head&, Index, Index, Index /*column*/) const {}
};

namespace detail {

/// What is read of an entry, to be written together.
template <class A, class B>
struct Both {
  A first;
  B second;
};
template <class A, class B>
Both(A, B) -> Both<A, B>;

using AnyHead = Head<float, float>;  // parts are templates; this is what the concepts try them with

/// Whether a scorer, or a policy, has left `observe` as it came.
template <class S, class Base>
inline constexpr bool inherits_observe = requires {
  requires std::same_as<decltype(&S::template observe<SerialTeam, AnyHead>),
                        decltype(&Base::template observe<SerialTeam, AnyHead>)>;
};

/// Whether a scorer's `observe` can be called.
template <class S>
concept CanObserve = requires(const S& scorer, SerialTeam& team, const AnyHead& head,
                              const Observation& row) {
  scorer.observe(team, head, row);
};

/// Whether a scorer has a lower bound of its scores.
template <class Scorer, class Head>
concept BoundsScores = requires(const Scorer& scorer, const Head& head, Index slot) {
  { scorer.least_score(head, slot) } -> std::convertible_to<float>;
};

/// Whether the team has vectors, and its memory is what a processor may be asked to fetch.
template <class Team>
concept HasVectors = requires {
  requires Team::kVectors;
};
/// Whether besides `score`, or one of the bounds, gives one for a SlotVector, and so many numbers
/// at a time.
template <class Scorer, class Team, class Head>
concept ScoresVectors = HasVectors<Team> &&
    requires(const Scorer& scorer, const Head& head, const SlotVector<true>& slots) {
  { scorer.score(head, slots) } -> std::same_as<simd::Floats>;
};
template <class Scorer, class Team, class Head>
concept BoundsVectors = HasVectors<Team> &&
    requires(const Scorer& scorer, const Head& head, const SlotVector<true>& slots) {
  { scorer.least_score(head, slots) } -> std::same_as<simd::Floats>;
};
template <class Scorer, class Team, class Head>
concept BoundsRoughly = BoundsVectors<Scorer, Team, Head> &&
    requires(const Scorer& scorer, const Head& head, const SlotVector<true>& slots) {
  { scorer.rough_score(head, slots) } -> std::same_as<simd::Floats>;
};
/// The body, said to take a SlotVector as well if `yes`.
template <bool yes, class F>
TERSEKV_HD auto of_vectors_if(F body) {
  if constexpr (yes) {
    return OfVectors{body};
  } else {
    return body;
  }
}

}  // namespace detail

/// See ScorerBase.
template <class S>
concept ScorerPart = std::derived_from<S, ScorerBase> && std::copyable<S> &&
    detail::CanObserve<S> &&
    requires(const S& scorer, const Shape& shape, Index n, SerialTeam& team,
             const detail::AnyHead& head, const HeadView<float, float>& view, const float* scores) {
  scorer.validate(shape);
  { scorer.statistics(shape) } -> std::convertible_to<Index>;
  { scorer.registers(shape) } -> std::convertible_to<Index>;
  { scorer.observed_rows(n) } -> std::convertible_to<Index>;
  scorer.append(team, head, n, n, scores);
  scorer.prepare(team, head);
  { scorer.score(head, n) } -> std::convertible_to<float>;
  { scorer.score(view, n) } -> std::convertible_to<float>;
};

/// See MergerBase.
template <class M, class Scorer>
concept MergerPart = std::derived_from<M, MergerBase> && std::copyable<M> &&
    requires(const M& merger, const Shape& shape, Index n, SerialTeam& team,
             const detail::AnyHead& head, const Scorer& scorer, std::int32_t* victims,
             bool (*eligible)(Index)) {
  merger.validate(shape, n);
  { merger.statistics(shape) } -> std::convertible_to<Index>;
  { merger.alpha() } -> std::convertible_to<float>;
  { merger.reserved(n) } -> std::convertible_to<Index>;
  { merger.spare() } -> std::convertible_to<Index>;
  merger.append(team, head, n, n, n);
  { merger.retire(team, head, scorer, victims, n, eligible, n) } -> std::convertible_to<Index>;
};

/// See SelectorBase.
template <class S, class Scorer, class Merger>
concept SelectorPart = std::derived_from<S, SelectorBase> && std::copyable<S> &&
    requires(const S& selector, const Shape& shape, Index n, SerialTeam& team,
             const detail::AnyHead& head, const Scorer& scorer, const Merger& merger) {
  selector.validate(shape, n, n);
  { selector.statistics(shape) } -> std::convertible_to<Index>;
  { selector.max_length(shape, n, n) } -> std::convertible_to<Index>;
  selector.compress(team, head, scorer, merger, n, n);
};

}  // namespace tersekv
