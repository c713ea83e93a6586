// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "tersekv/config.hpp"
#include "tersekv/view.hpp"

namespace tersekv::detail {

using Extents = std::array<Index, 3>;  // tokens, heads, head_dim

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

  /// First and one past the last of its elements, relative to the one that the address is of; given
  /// `row`, of where they lie in rows of so many elements, which some axes only step along.
  std::pair<Index, Index> range(Index row = 0) const {
    Index low = 0, high = 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (extents[axis] <= 1 || (row > 0 && is_multiple(strides[axis], row))) continue;
      (strides[axis] < 0 ? low : high) += (extents[axis] - 1) * strides[axis];
    }
    return {low, high + 1};
  }
  std::intptr_t address_of(Index element) const { return address + element * element_bytes; }

 private:
  /// Mostly without the division, which takes longer than all else.
  static bool is_multiple(Index stride, Index row) {
    const Index steps = std::abs(stride);
    return steps == row || (steps > row ? steps % row == 0 : steps == 0);
  }
};

/// Whether elements lie so far from each other that no memory holds them, and counting bytes from
/// one to another may overflow. Of no tokens none do, whatever the strides.
inline bool reaches_too_far(const Footprint& view) {
  if (view.extents[0] == 0) return false;
  double bytes = 0;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (view.extents[axis] <= 1) continue;
    const auto stride = static_cast<double>(view.strides[axis]);
    bytes += static_cast<double>(view.extents[axis] - 1) * (stride < 0 ? -stride : stride);
  }
  return bytes * static_cast<double>(view.element_bytes) > 0x1p60;
}

/// Whether two views, `apart` elements from each other, are different columns of rows of `row`
/// elements, wherever these rows begin.
inline bool in_other_columns(const Footprint& a, const Footprint& b, Index apart, Index row) {
  const auto [a_first, a_last] = a.range(row);
  const auto [b_first, b_last] = b.range(row);
  Index gap = apart + b_first - a_first;  // where b's columns begin, from a's on
  if (gap <= -row || gap >= row) gap %= row;
  if (gap < 0) gap += row;
  return gap >= a_last - a_first && gap + b_last - b_first <= row;
}

/// Whether two views may share an element: their memory overlaps, and by none of their strides are
/// they different columns of the same rows: parts of one fused buffer, by tokens or by heads, or
/// sequences of a batch whose heads come first.
inline bool overlap(const Footprint& a, const Footprint& b) {
  if (a.extents[0] == 0 || b.extents[0] == 0) return false;
  const auto [a_low, a_high] = a.range();
  const auto [b_low, b_high] = b.range();
  if (a.address_of(a_low) >= b.address_of(b_high) || b.address_of(b_low) >= a.address_of(a_high)) {
    return false;
  }
  const Index bytes = b.address - a.address;
  if (b.element_bytes != a.element_bytes || bytes % a.element_bytes != 0) return true;
  const Index apart = bytes / a.element_bytes;
  for (const Footprint* view : {&a, &b}) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const Index row = view->extents[axis] > 1 ? std::abs(view->strides[axis]) : 0;
      if (row > 1 && in_other_columns(a, b, apart, row)) return false;
    }
  }
  return true;
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
/// must step over everything the smaller ones reach. Of no tokens none do, whatever the strides.
inline bool overlaps_itself(const Footprint& view) {
  if (view.extents[0] == 0) return false;
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

/// The normalisers of `tokens` tokens; without any, nothing.
inline Footprint lse_footprint(const float* lse, Index tokens, Index q_heads) {
  return TokenView<const float>{lse, lse == nullptr ? 0 : tokens, q_heads, 1, q_heads, 1, 1};
}
/// Scores of tokens; without any, nothing.
inline Footprint scores_footprint(const ScoreView& scores, Index tokens, Index kv_heads) {
  return TokenView<const float>{scores.data,
                                scores.data == nullptr ? 0 : tokens,
                                kv_heads,
                                1,
                                scores.token_stride,
                                scores.head_stride,
                                1};
}

/// What a call touches, and what it writes first: out, lse, q, k, v and scores.
using CallFootprints = std::array<Footprint, 6>;
inline constexpr int kWrittenFootprints = 2;

/// Of a chunk, or a device's batch.
template <class Given>
CallFootprints footprints_of(const Given& given) {
  return {given.out, lse_footprint(given.lse, given.q.tokens, given.q.heads),
          given.q,   given.k,
          given.v,   scores_footprint(given.token_scores, given.k.tokens, given.k.heads)};
}

}  // namespace tersekv::detail
