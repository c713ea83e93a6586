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
