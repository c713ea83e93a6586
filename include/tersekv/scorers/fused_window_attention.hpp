// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/log_math.hpp"
#include "tersekv/policy.hpp"

namespace tersekv {

/// How MorphKV fuses the attention rows of the latest queries.
enum class Fusion { sum, max };

/// F_i = sum or maximum of the attention of the latest `window` queries.
///
/// A sliding aggregate without subtraction, so that neither rounding nor the maximum is a problem:
/// the head cuts its queries into blocks of `window`. An entry keeps the aggregate of the current
/// block so far and, for the block before, its suffix aggregates; the two together cover exactly
/// the last `window` queries. At the start of a block the raw rows of the last one become suffix
/// aggregates in place: window n additions at every window-th query, O(n) per query on average.
/// All entries share the block, so equal rows give equal scores, bit for bit. Memory: window + 1
/// numbers per entry.
struct FusedWindowAttention : ScorerBase {
  static constexpr Observes observes = Observes::attention;
  Fusion fusion = Fusion::sum;
  Index window = 32;  ///< >= 1
  bool operator==(const FusedWindowAttention&) const = default;

  void validate(const Shape&) const {
    detail::require(window >= 1 && window <= 4096, "window (MorphKV's recent)", "1 to 4096",
                    window);
  }
  TERSEKV_HD Index statistics(const Shape&) const { return window + 1; }
  Index registers(const Shape&) const { return 1; }  // queries of the current block so far
  Index observed_rows(Index rows) const { return std::min(rows, window); }

  /// Short heads are attended to in less time than it takes to fetch a window's columns, so what
  /// the query's row will be written over, and what is looked at then, is asked for before.
  template <class Team, class Head>
  TERSEKV_HD void append(Team&, const Head& head, Index, Index count, const float*) const {
    if constexpr (detail::HasVectors<Team>) {
      if (count > 1 || head.length() >= detail::kFarEntries) return;
      const Index at = queries_of_block(head);
      for (const Index column : {kBlock, kRows + at, kRows + (at + 1 == window ? 0 : at + 1)}) {
        head.ask_for_column(column);
      }
    }
  }
  template <class Team, class Head>
  TERSEKV_HD void observe(Team& team, const Head& head, const Observation& row) const {
    const Index at = queries_of_block(head);
    if (at == 0) {
      team.for_each_vector(head, head.length(), [&](auto i) {
        auto suffix = head.stat(kRows + window - 1, i);
        for (Index j = window - 2; j > 0; --j) {  // row 0 is overwritten below
          suffix = fuse(head.stat(kRows + j, i), suffix);
          head.set_stat(kRows + j, i, suffix);
        }
        head.set_stat(kBlock, i, decltype(suffix){});
      });
    }
    team.for_each_vector(
        head, row.visible,
        [&](auto i) {
          head.ask_for_stat(kRows + at, i);
          const auto attention = element_at(row.attention, i);
          return detail::Both{attention, fuse(head.stat(kBlock, i), attention)};
        },
        [&](auto i, const auto& row_and_block) {
          head.set_stat(kRows + at, i, row_and_block.first);
          head.set_stat(kBlock, i, row_and_block.second);
        });
    team.for_each(head.length() - row.visible,
                  [&](Index i) { head.stat(kRows + at, row.visible + i) = 0; });
    team.once([&] { head.reg(0) = static_cast<float>(at + 1 == window ? 0 : at + 1); });
  }
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    const Index at = queries_of_block(head);
    const auto block = head.stat(kBlock, slot);
    head.ask_for_stat(kRows + at, slot);
    return at == 0 ? block : fuse(block, head.stat(kRows + at, slot));
  }

 private:
  static constexpr Index kBlock = 0, kRows = 1;
  template <class Head>
  TERSEKV_HD static Index queries_of_block(const Head& head) {
    return static_cast<Index>(head.reg(0));
  }
  template <class Float>
  TERSEKV_HD Float fuse(Float a, Float b) const {
    return fusion == Fusion::sum ? a + b : detail::higher(a, b);
  }
};

}  // namespace tersekv
