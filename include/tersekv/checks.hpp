// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "tersekv/chunk.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/view.hpp"

// What the host boundary checks before anything is changed. Messages say what, expected, got.

namespace tersekv::detail {

inline void check_config(const CacheConfig& config) {
  require_count("num_sequences", config.num_sequences, 1);
  require_count("num_kv_heads", config.num_kv_heads, 1);
  require_count("num_q_heads", config.num_q_heads, 1);
  require_count("head_dim", config.head_dim, 1);
  require(config.head_dim <= 65536, "head_dim", "at most 65536", config.head_dim);
  const Index most = (Index{1} << 31) / config.num_kv_heads;
  require(config.num_sequences <= most, "num_sequences", "at most 2^31 / num_kv_heads",
          config.num_sequences);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    refuse("num_q_heads", text("a multiple of num_kv_heads (", config.num_kv_heads, ")"),
           text(config.num_q_heads));
  }
  require_count("layer", config.layer, 0);
  require_between("scale", config.scale, 0.0f, 1000.0f);  // 0: 1 / sqrt(head_dim)
  const Index page = config.page_size;
  require(page >= 16 && page <= kMostPageSize && (page & (page - 1)) == 0, "page_size",
          "a power of two from 16 to 4096", page);
  const Index budgets = config.budget.size();
  if (budgets > 1 && budgets != config.num_kv_heads) {
    refuse("budget", text("one number or one per KV head (", config.num_kv_heads, ")"),
           text(budgets, " numbers"));
  }
  for (Index h = 0; h < config.num_kv_heads; ++h) {
    require(config.budget.of(h) >= 1, "budget", "at least 1", config.budget.of(h));
  }
}

using Extents = std::array<Index, 3>;  // tokens, heads, head_dim

[[noreturn]] inline void refuse_extents(const char* name, const Extents& expected, bool null,
                                        const Extents& got) {
  const auto shape = [](const Extents& of) {
    return text("[", of[0], ", ", of[1], ", ", of[2], "]");
  };
  refuse(name, shape(expected), null ? "a null pointer" : shape(got));
}
[[noreturn]] inline void refuse_strides(const char* name, const Extents& got) {
  refuse(text(name, ": strides of token, head and element"), "none of 0 (forgotten?)",
         text("[", got[0], ", ", got[1], ", ", got[2], "]"));
}
template <class T>
void check_extents(const char* name, const TokenView<T>& view, Index tokens, Index heads,
                   Index head_dim) {
  const Extents got{view.tokens, view.heads, view.head_dim}, expected{tokens, heads, head_dim};
  if (got != expected || (view.data == nullptr && tokens != 0)) {
    refuse_extents(name, expected, got == expected, got);
  }
  const bool moves = (tokens <= 1 || view.token_stride != 0) &&
                     (heads <= 1 || view.head_stride != 0) &&
                     (head_dim <= 1 || view.dim_stride != 0);
  if (!moves && tokens != 0)
    refuse_strides(name, {view.token_stride, view.head_stride, view.dim_stride});
}

/// Whether every element is finite and of magnitude up to `max_magnitude`. Looks at the bits: as
/// integers, floats without their sign grow with their magnitude, infinity and NaN last.
template <class T>
bool all_within(const TokenView<T>& view, float max_magnitude) {
  const auto most = std::bit_cast<std::uint32_t>(max_magnitude);
  for (Index t = 0; t < view.tokens; ++t) {
    for (Index h = 0; h < view.heads; ++h) {
      std::uint32_t beyond = 0;
      view.for_each_element(t, h, [&](const T& x, Index) {
        const auto bits = std::bit_cast<std::uint32_t>(to_float(x)) & 0x7fffffffu;
        beyond |= bits > most ? 1u : 0u;
      });
      if (beyond != 0) return false;
    }
  }
  return true;
}

[[noreturn]] inline void refuse_value(const char* name, Index sequence, const Extents& at,
                                      float max_magnitude, float got) {
  refuse(text(name, " of sequence ", sequence, ", token ", at[0], ", head ", at[1], ", element ",
              at[2]),
         text("a finite number of magnitude up to ", max_magnitude),
         is_finite(got) ? text(got) : "NaN or infinity");
}

/// Every element finite and within what the storage holds. O(elements).
template <class T>
void check_values(const char* name, Index sequence, const TokenView<T>& view, float max_magnitude) {
  if (all_within(view, max_magnitude)) return;
  for (Index t = 0; t < view.tokens; ++t) {
    for (Index h = 0; h < view.heads; ++h) {
      for (Index d = 0; d < view.head_dim; ++d) {
        const float x = to_float(view(t, h, d));
        if (is_finite(x) && std::abs(x) <= max_magnitude) continue;
        refuse_value(name, sequence, {t, h, d}, max_magnitude, x);
      }
    }
  }
}

inline void check_count(Index tokens, Index seen) {
  require(tokens >= 0, "tokens", "at least 0", tokens);
  if (tokens > kMostTokens - seen) {
    throw std::length_error(
        text("tersekv: tokens of a sequence: expected fewer than 2^31, got ", seen, " + ", tokens));
  }
}

/// Scores are there; values are not looked at.
inline void check_scores_given(const ScoreView& scores, Index tokens) {
  if (scores.data == nullptr && tokens > 0) {
    refuse("token_scores", "a score for every token and KV head", "none");
  }
  if (tokens > 1 && scores.token_stride == 0) {
    refuse("token_scores", "a stride between tokens", "a stride of 0");
  }
}
inline void check_scores(const ScoreView& scores, Index tokens, Index kv_heads) {
  check_scores_given(scores, tokens);
  for (Index t = 0; t < tokens; ++t) {
    for (Index h = 0; h < kv_heads; ++h) {
      if (!is_finite(scores(t, h))) refuse("token_scores", "finite numbers", "NaN or infinity");
    }
  }
}

inline std::string reduced_as(GroupReduce reduce, Index group_size) {
  const char* how = reduce == GroupReduce::sum    ? "sum"
                    : reduce == GroupReduce::mean ? "mean"
                                                  : "max";
  return text(" (the ", how, " of ", group_size, " query heads)");
}
/// In parts, lest rounding add up.
inline double sum_of(const float* row, Index n) {
  double sum = 0;
  for (Index start = 0; start < n; start += 1024) {
    const Index stop = std::min(start + 1024, n);
    simd::Floats part = {};
    Index i = start;
    for (; i + simd::kLanes <= stop; i += simd::kLanes) part += simd::load(row + i);
    sum += static_cast<double>(simd::sum(part));
    for (; i < stop; ++i) sum += static_cast<double>(row[i]);
  }
  return sum;
}

/// An engine's attention rows of one head: finite numbers that can be a group's attention, reduced
/// as said, wherever an entry was visible, and together no more than all entries can get.
inline void check_attention(const AttentionRows<const float>& rows, Index kv_head, Index length,
                            Index group_size, GroupReduce reduce) {
  constexpr float rounding = 1.01f;  // of kernels
  const Index most_of_one = reduce == GroupReduce::sum ? group_size : 1;
  const Index most_of_all = reduce == GroupReduce::mean ? 1 : group_size;
  const float most = rounding * static_cast<float>(most_of_one);
  for (Index r = 0; r < rows.rows; ++r) {
    const float* row = rows.row(r, kv_head);
    const Index visible = length - (rows.rows - 1 - r);
    // As integers, floats from 0 on grow with their magnitude, and all others are beyond them.
    const auto bits_of_most = std::bit_cast<std::uint32_t>(most);
    std::uint32_t beyond = 0;
    for (Index i = 0; i < visible; ++i) {
      beyond |= std::bit_cast<std::uint32_t>(row[i]) > bits_of_most ? 1u : 0u;
    }
    for (Index i = 0; beyond != 0 && i < visible; ++i) {  // -0 is none of them, and right
      const bool finite = is_finite(row[i]);
      if (finite && row[i] >= 0.0f && row[i] <= most) continue;
      refuse(text("rows, row ", r, ", head ", kv_head, ", slot ", i),
             text("finite attention from 0 to ", most_of_one, reduced_as(reduce, group_size)),
             finite ? text(row[i]) : "NaN or infinity");
    }
    const auto sum = static_cast<float>(sum_of(row, visible));
    if (sum <= rounding * static_cast<float>(most_of_all)) continue;
    refuse(text("rows, row ", r, ", head ", kv_head),
           text("attention that adds up to at most ", most_of_all, reduced_as(reduce, group_size)),
           text(sum));
  }
}

/// Where the elements of a view lie, whatever their type: so that these checks are compiled once.
struct Footprint {
  std::intptr_t address = 0;
  Index element_bytes = 1;
  Extents extents{}, strides{};  // strides in elements, as given: of one index, any number

  Footprint() = default;
  template <class T>
  Footprint(const TokenView<T>& view)  // NOLINT: a view is what the checks are called with
      : address(reinterpret_cast<std::intptr_t>(view.data)),
        element_bytes(sizeof(T)),
        extents{view.tokens, view.heads, view.head_dim},
        strides{view.token_stride, view.head_stride, view.dim_stride} {}

  /// First and one past the last of the elements that `tokens` tokens touch, relative to the first.
  std::pair<Index, Index> range(Index tokens) const {
    Index low = 0, high = 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const Index steps = (axis == 0 ? tokens : extents[axis]) - 1;
      (strides[axis] < 0 ? low : high) += steps * strides[axis];
    }
    return {low, high + 1};
  }
  std::intptr_t address_of(Index element) const { return address + element * element_bytes; }
};

/// Whether two views may share an element: their memory overlaps, and they are not different
/// columns of the same rows (parts of one fused buffer).
inline bool overlap(const Footprint& a, const Footprint& b) {
  if (a.extents[0] == 0 || b.extents[0] == 0) return false;
  const auto [a_low, a_high] = a.range(a.extents[0]);
  const auto [b_low, b_high] = b.range(b.extents[0]);
  if (a.address_of(a_low) >= b.address_of(b_high) || b.address_of(b_low) >= a.address_of(a_high)) {
    return false;
  }
  const Index stride = a.strides[0], apart = b.address - a.address;
  if (stride <= 0 || b.strides[0] != stride || b.element_bytes != a.element_bytes ||
      apart % a.element_bytes != 0) {
    return true;
  }
  const auto [a_first, a_last] = a.range(1);
  const auto [b_first, b_last] = b.range(1);
  Index gap = (apart / a.element_bytes + b_first - a_first) % stride;
  if (gap < 0) gap += stride;  // where b's row begins in the row of a
  return gap < a_last - a_first || b_last - b_first > stride - gap;
}

/// Whether two views of as many elements are the same one. The stride of one index may be any.
inline bool same_elements(const Footprint& a, const Footprint& b) {
  bool same = a.address == b.address && a.element_bytes == b.element_bytes;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    same = same && (a.extents[axis] <= 1 || a.strides[axis] == b.strides[axis]);
  }
  return same;
}

/// Whether two indices of the view may name the same element: with strides in order of size, each
/// must step over everything the smaller ones reach.
inline bool overlaps_itself(const Footprint& view) {
  std::array<std::pair<Index, Index>, 3> axes;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    // The stride of one index may be any number.
    axes[axis] = {view.extents[axis] > 1 ? std::abs(view.strides[axis]) : 0, view.extents[axis]};
  }
  if (axes[1] < axes[0]) std::swap(axes[0], axes[1]);
  if (axes[2] < axes[1]) std::swap(axes[1], axes[2]);
  if (axes[1] < axes[0]) std::swap(axes[0], axes[1]);
  Index reach = 1;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride < reach) return true;
    reach += (extent - 1) * stride;
  }
  return false;
}

/// Whoever takes over what a policy left behind is to be one with the same parameters; policies
/// that cannot be compared are taken at their word.
template <class PolicyType>
void check_same_policy(const PolicyType& got, const PolicyType& expected) {
  if constexpr (std::equality_comparable<PolicyType>) {
    if (!(got == expected)) refuse("policy", "the same parameters in both caches", "others");
  }
}

/// Configs alike but for num_sequences.
inline void check_same_config(const CacheConfig& got, const CacheConfig& expected) {
  require_equal("num_q_heads", got.num_q_heads, expected.num_q_heads);
  require_equal("num_kv_heads", got.num_kv_heads, expected.num_kv_heads);
  require_equal("head_dim", got.head_dim, expected.head_dim);
  require_equal("page_size", got.page_size, expected.page_size);
  require_equal("layer", got.layer, expected.layer);
  if (got.scale != expected.scale) refuse("scale", text(expected.scale), text(got.scale));
  require_equal("group_reduce", static_cast<int>(got.group_reduce),
                static_cast<int>(expected.group_reduce));
  for (Index h = 0; h < expected.num_kv_heads; ++h) {
    require_equal("budget", got.budget.of(h), expected.budget.of(h));
  }
}

/// Tokens that are taken back, of `most` that may be.
inline void check_rewind(Index tokens, Index most) {
  if (tokens >= 0 && tokens <= most) return;
  refuse("tokens to take back",
         text("0 to ", most, ", those of the latest append that came since the last compression"),
         text(tokens));
}

/// Rows and heads of attention rows must not share memory, each `longest` numbers long. Returns
/// what they take.
template <class T>
Footprint check_row_strides(const AttentionRows<T>& rows, Index kv_heads, Index longest) {
  const TokenView<T> all{rows.data, rows.rows,       kv_heads,
                         longest,   rows.row_stride, rows.head_stride};
  if (!overlaps_itself(all)) return all;
  refuse(
      "rows",
      text("strides that keep rows and heads apart, ", longest, " numbers each (the longest head)"),
      text("row_stride ", rows.row_stride, ", head_stride ", rows.head_stride));
}

inline void check_output(const Footprint& q, const Footprint& k, const Footprint& v,
                         const Footprint& out) {
  if (overlaps_itself(out))
    refuse("out", "strides that give every element a place of its own", "overlapping elements");
  if (!same_elements(q, out) && overlap(q, out)) {
    refuse("out", "memory apart from q, or exactly q's view", "a view that overlaps q");
  }
  if (overlap(k, out) || overlap(v, out)) {
    refuse("out", "memory apart from k and v", "a view that overlaps one of them");
  }
}

/// What is written beside `out`, apart from everything else of the call.
template <class... Views>
void check_beside(const char* name, const Footprint& written, const Views&... others) {
  if ((overlap(written, others) || ...)) {
    refuse(name, "memory of its own", "memory that overlaps another argument");
  }
}
/// The normalisers of `tokens` tokens, as a view; without any, one of nothing.
inline Footprint lse_footprint(float* lse, Index tokens, Index q_heads) {
  return TokenView<float>{lse, lse == nullptr ? 0 : tokens, q_heads, 1, q_heads, 1, 1};
}

/// Scores of tokens as a view; without any, one of nothing.
inline TokenView<const float> scores_view(const ScoreView& scores, Index tokens, Index kv_heads) {
  return {scores.data,
          scores.data == nullptr ? 0 : tokens,
          kv_heads,
          1,
          scores.token_stride,
          scores.head_stride,
          1};
}

/// What a chunk, or a device's batch, writes: apart from what it reads.
template <class Given>
void check_written(const Given& given, Index q_heads, Index kv_heads) {
  const Index tokens = given.k.tokens;
  const Footprint scores = scores_view(given.token_scores, tokens, kv_heads);
  check_output(given.q, given.k, given.v, given.out);
  check_beside("out", given.out, scores);
  check_beside("lse", lse_footprint(given.lse, tokens, q_heads), given.q, given.k, given.v,
               given.out, scores);
}

}  // namespace tersekv::detail
