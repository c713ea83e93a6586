// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/footprint.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/view.hpp"

// What the host boundary checks before anything is changed. Messages say what, expected, got.

namespace tersekv::detail {

[[gnu::cold]] inline void check_config(const CacheConfig& config) {
  require_count("num_sequences", config.num_sequences, 1);
  require_count("num_kv_heads", config.num_kv_heads, 1);
  require_count("num_q_heads", config.num_q_heads, 1);
  require_count("head_dim", config.head_dim, 1);
  require(config.head_dim <= 65536, "head_dim", "at most 65536", config.head_dim);
  const Index most = (Index{1} << 31) / config.num_kv_heads;
  require(config.num_sequences <= most, "num_sequences", "at most 2^31 / num_kv_heads",
          config.num_sequences);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    refuse({"num_q_heads"}, {"a multiple of num_kv_heads (", config.num_kv_heads, ")"},
           {config.num_q_heads});
  }
  require_count("layer", config.layer, 0);
  require_between("scale", config.scale, 0.0f, 1000.0f);  // 0: 1 / sqrt(head_dim)
  const Index page = config.page_size;
  require(page >= 16 && page <= kMostPageSize && (page & (page - 1)) == 0, "page_size",
          "a power of two from 16 to 4096", page);
  const Index budgets = config.budget.size();
  if (budgets > 1 && budgets != config.num_kv_heads) {
    refuse({"budget"}, {"one number or one per KV head (", config.num_kv_heads, ")"},
           {budgets, " numbers"});
  }
  for (Index h = 0; h < config.num_kv_heads; ++h) {
    require(config.budget.of(h) >= 1, "budget", "at least 1", config.budget.of(h));
  }
}

[[noreturn]] inline void refuse_extents(const char* name, const Extents& expected, bool null,
                                        const Extents& got) {
  const auto& [tokens, heads, dim] = expected;
  const TextParts wanted{"[", tokens, ", ", heads, ", ", dim, "]"};
  if (null) refuse({name}, wanted, {"a null pointer"});
  refuse({name}, wanted, {"[", got[0], ", ", got[1], ", ", got[2], "]"});
}
inline constexpr const char* kWithinReach = "elements within 2^60 bytes of each other";
[[noreturn]] inline void refuse_strides(const char* name, const char* expected,
                                        const Extents& got) {
  refuse({name, ": strides of token, head and element"}, {expected},
         {"[", got[0], ", ", got[1], ", ", got[2], "]"});
}
inline void check_extents(const char* name, const Footprint& view, Index tokens, Index heads,
                          Index head_dim) {
  const Extents expected{tokens, heads, head_dim};
  if (view.extents != expected || (view.address == 0 && tokens != 0)) {
    refuse_extents(name, expected, view.extents == expected, view.extents);
  }
  bool moves = true;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    moves = moves && (expected[axis] <= 1 || view.strides[axis] != 0);
  }
  if (tokens == 0) return;
  if (!moves) refuse_strides(name, "none of 0 (forgotten?)", view.strides);
  if (reaches_too_far(view)) refuse_strides(name, kWithinReach, view.strides);
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
  refuse(
      {name, " of sequence ", sequence, ", token ", at[0], ", head ", at[1], ", element ", at[2]},
      {"a finite number of magnitude up to ", max_magnitude}, {number_or_none(got)});
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
    throw std::length_error(text(
        {"tersekv: tokens of a sequence: expected fewer than 2^31, got ", seen, " + ", tokens}));
  }
}

/// Scores are there; values are not looked at.
inline void check_scores_given(const ScoreView& scores, Index tokens, Index kv_heads) {
  if (scores.data == nullptr && tokens > 0) {
    refuse({"token_scores"}, {"a score for every token and KV head"}, {"none"});
  }
  if (tokens > 1 && scores.token_stride == 0) {
    refuse({"token_scores"}, {"a stride between tokens"}, {"a stride of 0"});
  }
  const Footprint all = scores_footprint(scores, tokens, kv_heads);
  if (reaches_too_far(all)) refuse_strides("token_scores", kWithinReach, all.strides);
}
inline void check_scores(const ScoreView& scores, Index tokens, Index kv_heads) {
  check_scores_given(scores, tokens, kv_heads);
  for (Index t = 0; t < tokens; ++t) {
    for (Index h = 0; h < kv_heads; ++h) {
      if (!is_finite(scores(t, h)))
        refuse({"token_scores"}, {"finite numbers"}, {"NaN or infinity"});
    }
  }
}

inline const char* name_of(GroupReduce reduce) {
  return reduce == GroupReduce::sum ? "sum" : reduce == GroupReduce::mean ? "mean" : "max";
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
      refuse({"rows, row ", r, ", head ", kv_head, ", slot ", i},
             {"finite attention from 0 to ", most_of_one, " (the ", name_of(reduce), " of ",
              group_size, " query heads)"},
             {number_or_none(row[i])});
    }
    const auto sum = static_cast<float>(sum_of(row, visible));
    if (sum <= rounding * static_cast<float>(most_of_all)) continue;
    refuse({"rows, row ", r, ", head ", kv_head},
           {"attention that adds up to at most ", most_of_all, " (the ", name_of(reduce), " of ",
            group_size, " query heads)"},
           {sum});
  }
}

/// Whoever takes over what a policy left behind is to be one with the same parameters; policies
/// that cannot be compared are taken at their word.
template <class PolicyType>
void check_same_policy(const PolicyType& got, const PolicyType& expected) {
  if constexpr (std::equality_comparable<PolicyType>) {
    if (!(got == expected)) refuse({"policy"}, {"the same parameters in both caches"}, {"others"});
  }
}

/// Configs alike but for num_sequences.
inline void check_same_config(const CacheConfig& got, const CacheConfig& expected) {
  require_equal("num_q_heads", got.num_q_heads, expected.num_q_heads);
  require_equal("num_kv_heads", got.num_kv_heads, expected.num_kv_heads);
  require_equal("head_dim", got.head_dim, expected.head_dim);
  require_equal("page_size", got.page_size, expected.page_size);
  require_equal("layer", got.layer, expected.layer);
  if (got.scale != expected.scale) refuse({"scale"}, {expected.scale}, {got.scale});
  require_equal("group_reduce", static_cast<int>(got.group_reduce),
                static_cast<int>(expected.group_reduce));
  for (Index h = 0; h < expected.num_kv_heads; ++h) {
    require_equal("budget", got.budget.of(h), expected.budget.of(h));
  }
}

/// Tokens that are taken back, of `most` that may be.
inline void check_rewind(Index tokens, Index most) {
  if (tokens >= 0 && tokens <= most) return;
  refuse({"tokens to take back"},
         {"0 to ", most, ", what is left of the latest append since the last compression"},
         {tokens});
}

/// Rows and heads of attention rows must not share memory, each `longest` numbers long. Returns
/// what they take.
template <class T>
Footprint check_row_strides(const AttentionRows<T>& rows, Index kv_heads, Index longest) {
  const TokenView<T> all{rows.data, rows.rows,       kv_heads,
                         longest,   rows.row_stride, rows.head_stride};
  if (reaches_too_far(all)) refuse_strides("rows", kWithinReach, Footprint(all).strides);
  if (!overlaps_itself(all)) return all;
  refuse({"rows"},
         {"strides that keep rows and heads apart, ", longest, " numbers each (the longest head)"},
         {"row_stride ", rows.row_stride, ", head_stride ", rows.head_stride});
}

inline void check_output(const Footprint& q, const Footprint& k, const Footprint& v,
                         const Footprint& out) {
  if (overlaps_itself(out))
    refuse({"out"}, {"strides that give every element a place of its own"},
           {"overlapping elements"});
  if (!same_elements(q, out) && overlap(q, out)) {
    refuse({"out"}, {"memory apart from q, or exactly q's view"}, {"a view that overlaps q"});
  }
  if (overlap(k, out) || overlap(v, out)) {
    refuse({"out"}, {"memory apart from k and v"}, {"a view that overlaps one of them"});
  }
}

/// What is written beside `out`, apart from everything else of the call.
inline void check_beside(const char* name, const Footprint& written,
                         std::initializer_list<Footprint> others) {
  for (const Footprint& other : others) {
    if (!overlap(written, other)) continue;
    refuse({name}, {"memory of its own"}, {"memory that overlaps another argument"});
  }
}

/// What a chunk, or a device's batch, writes: apart from what it reads.
inline void check_written(const CallFootprints& call) {
  const auto& [out, lse, q, k, v, scores] = call;
  check_output(q, k, v, out);
  check_beside("out", out, {scores});
  check_beside("lse", lse, {q, k, v, out, scores});
}

}  // namespace tersekv::detail
