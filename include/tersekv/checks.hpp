// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "tersekv/chunk.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/view.hpp"

// What the host boundary checks before anything is changed. Messages say what, expected, got.

namespace tersekv::detail {

inline void check_config(const CacheConfig& config) {
  require_count("num_sequences", config.num_sequences, 1);
  require_count("num_kv_heads", config.num_kv_heads, 1);
  require_count("num_q_heads", config.num_q_heads, 1);
  require_count("head_dim", config.head_dim, 1);
  require(config.head_dim <= 65536, "head_dim", "at most 65536", config.head_dim);
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

template <class T>
void check_extents(const char* name, const TokenView<T>& view, Index tokens, Index heads,
                   Index head_dim) {
  if (view.tokens == tokens && view.heads == heads && view.head_dim == head_dim &&
      (view.data != nullptr || tokens == 0)) {
    return;
  }
  const auto shape = [](Index t, Index h, Index d) { return text("[", t, ", ", h, ", ", d, "]"); };
  refuse(name, shape(tokens, heads, head_dim),
         view.data == nullptr ? "a null pointer" : shape(view.tokens, view.heads, view.head_dim));
}

/// Whether every element is finite and of magnitude up to `max_magnitude`. Looks at the bits: as
/// integers, floats without their sign grow with their magnitude, infinity and NaN last.
template <class T>
bool all_within(const TokenView<T>& view, float max_magnitude) {
  const auto most = std::bit_cast<std::uint32_t>(max_magnitude);
  for (Index t = 0; t < view.tokens; ++t) {
    for (Index h = 0; h < view.heads; ++h) {
      const T* row = &view(t, h, 0);
      std::uint32_t beyond = 0;
      const auto look = [&](Index stride) {
        for (Index d = 0; d < view.head_dim; ++d) {
          const auto bits = std::bit_cast<std::uint32_t>(to_float(row[d * stride])) & 0x7fffffffu;
          beyond |= bits > most ? 1u : 0u;
        }
      };
      view.dim_stride == 1 ? look(1) : look(view.dim_stride);  // the usual one vectorises
      if (beyond != 0) return false;
    }
  }
  return true;
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
        refuse(text(name, " of sequence ", sequence, ", token ", t, ", head ", h, ", element ", d),
               text("a finite number of magnitude up to ", max_magnitude),
               is_finite(x) ? text(x) : "NaN or infinity");
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

inline void check_scores(const ScoreView& scores, Index tokens, Index kv_heads) {
  if (scores.data == nullptr && tokens > 0) {
    refuse("token_scores", "a score for every token and KV head", "none");
  }
  if (tokens > 1 && scores.token_stride == 0) {
    refuse("token_scores", "a stride between tokens", "a stride of 0");
  }
  for (Index t = 0; t < tokens; ++t) {
    for (Index h = 0; h < kv_heads; ++h) {
      if (!is_finite(scores(t, h))) refuse("token_scores", "finite numbers", "NaN or infinity");
    }
  }
}

/// An engine's attention rows of one head: finite numbers that can be a group's attention, wherever
/// an entry was visible.
inline void check_attention(const AttentionRows<const float>& rows, Index kv_head, Index length,
                            Index group_size) {
  const float most = 1.01f * static_cast<float>(group_size);  // kernels round
  for (Index r = 0; r < rows.rows; ++r) {
    const float* row = rows.row(r, kv_head);
    const Index visible = length - (rows.rows - 1 - r);
    // As integers, floats from 0 on grow with their magnitude, and all others are beyond them.
    const auto bits_of_most = std::bit_cast<std::uint32_t>(most);
    std::uint32_t beyond = 0;
    for (Index i = 0; i < visible; ++i) {
      beyond |= std::bit_cast<std::uint32_t>(row[i]) > bits_of_most ? 1u : 0u;
    }
    if (beyond == 0) continue;
    for (Index i = 0; i < visible; ++i) {  // -0 is none of them, and right
      if (!is_finite(row[i])) refuse("rows", "finite numbers", "NaN or infinity");
      if (row[i] < 0.0f || row[i] > most) {
        refuse("rows", "attention from 0 to the group's size", text(row[i]));
      }
    }
  }
}

/// First and one past the last of the elements that `tokens` tokens of a view touch, relative to
/// its data.
template <class T>
std::pair<Index, Index> extent_of(const TokenView<T>& view, Index tokens) {
  Index low = 0, high = 0;
  const std::pair<Index, Index> axes[] = {{tokens, view.token_stride},
                                          {view.heads, view.head_stride},
                                          {view.head_dim, view.dim_stride}};
  for (const auto& [extent, stride] : axes) (stride < 0 ? low : high) += (extent - 1) * stride;
  return {low, high + 1};
}

/// Whether two views may share an element: their memory overlaps, and they are not different
/// columns of the same rows (parts of one fused buffer).
template <class A, class B>
bool overlap(const TokenView<A>& a, const TokenView<B>& b) {
  if (a.tokens == 0 || b.tokens == 0) return false;
  const auto [a_low, a_high] = extent_of(a, a.tokens);
  const auto [b_low, b_high] = extent_of(b, b.tokens);
  const auto address = [](const auto* p) { return reinterpret_cast<std::intptr_t>(p); };
  if (address(a.data + a_low) >= address(b.data + b_high) ||
      address(b.data + b_low) >= address(a.data + a_high)) {
    return false;
  }
  const Index stride = a.token_stride;
  const Index apart = address(b.data) - address(a.data);
  if (stride <= 0 || b.token_stride != stride || apart % static_cast<Index>(sizeof(A)) != 0) {
    return true;
  }
  const auto [a_first, a_last] = extent_of(a, 1);
  const auto [b_first, b_last] = extent_of(b, 1);
  Index gap = (apart / static_cast<Index>(sizeof(A)) + b_first - a_first) % stride;
  if (gap < 0) gap += stride;  // where b's row begins in the row of a
  return gap < a_last - a_first || gap + (b_last - b_first) > stride;
}

/// Whether two indices of the view may name the same element: with strides in order of size, each
/// must step over everything the smaller ones reach.
template <class T>
bool overlaps_itself(const TokenView<T>& view) {
  std::pair<Index, Index> axes[] = {{std::abs(view.token_stride), view.tokens},
                                    {std::abs(view.head_stride), view.heads},
                                    {std::abs(view.dim_stride), view.head_dim}};
  std::sort(std::begin(axes), std::end(axes));
  Index reach = 1;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride < reach) return true;
    reach += (extent - 1) * stride;
  }
  return false;
}

/// Rows and heads of attention rows must not share memory, each `longest` numbers long.
template <class T>
void check_row_strides(const AttentionRows<T>& rows, Index kv_heads, Index longest) {
  const TokenView<T> all{rows.data, rows.rows,       kv_heads,
                         longest,   rows.row_stride, rows.head_stride};
  if (!overlaps_itself(all)) return;
  refuse(
      "rows",
      text("strides that keep rows and heads apart, ", longest, " numbers each (the longest head)"),
      text("row_stride ", rows.row_stride, ", head_stride ", rows.head_stride));
}

template <class T>
void check_output(const TokenView<const T>& q, const TokenView<const T>& k,
                  const TokenView<const T>& v, const TokenView<T>& out) {
  if (overlaps_itself(out))
    refuse("out", "strides that give every element a place of its own", "overlapping elements");
  const bool in_place = out.data == q.data && out.token_stride == q.token_stride &&
                        out.head_stride == q.head_stride && out.dim_stride == q.dim_stride;
  if (!in_place && overlap(q, out)) {
    refuse("out", "memory apart from q, or exactly q's view", "a view that overlaps q");
  }
  if (overlap(k, out) || overlap(v, out)) {
    refuse("out", "memory apart from k and v", "a view that overlaps one of them");
  }
}

/// Chunks of one batch run at the same time: neither may write what the other reads or writes.
template <class T>
void check_apart(const Chunk<T>& a, const Chunk<T>& b) {
  const auto touches = [](const TokenView<T>& out, const Chunk<T>& other) {
    return overlap(out, other.out) || overlap(out, other.q) || overlap(out, other.k) ||
           overlap(out, other.v);
  };
  if (touches(a.out, b) || touches(b.out, a)) {
    refuse("chunks", "an out apart from the views of all others", "one that overlaps");
  }
}

}  // namespace tersekv::detail
