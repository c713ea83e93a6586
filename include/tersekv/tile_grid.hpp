// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd_tiles.hpp"

// Products of matrices by tile registers, two tiles of rows by two of columns at a time: what is
// loaded is used twice. `Tiles` is simd::Tiles, or what does the same without such registers.

namespace tersekv::detail {

/// Room for n in whole tiles of `each`.
inline Index whole_tiles(Index n, Index each) { return (n + each - 1) / each * each; }
inline Index whole_tile_rows(Index rows) { return whole_tiles(rows, simd::kTileRows); }

/// `Lefts` tiles of rows, each below the one before it, times `Rights` tiles side by side, into
/// registers 2 l + r.
template <int Lefts, int Rights, class Tiles>
struct TileGrid {
  const Tiles& tiles;

  void clear() const {
    tiles.template zero<0>();
    if constexpr (Rights == 2) tiles.template zero<1>();
    if constexpr (Lefts == 2) tiles.template zero<2>();
    if constexpr (Lefts == 2 && Rights == 2) tiles.template zero<3>();
  }
  template <simd::TileProduct product>
  void add(const std::byte* left, Index left_stride, const std::byte* right,
           Index right_stride) const {
    tiles.template load<4>(left, left_stride);
    if constexpr (Lefts == 2)
      tiles.template load<5>(left + simd::kTileRows * left_stride, left_stride);
    tiles.template load<6>(right, right_stride);
    if constexpr (Rights == 2) tiles.template load<7>(right + simd::kTileBytes, right_stride);
    tiles.template multiply<product, 0, 4, 6>();
    if constexpr (Rights == 2) tiles.template multiply<product, 1, 4, 7>();
    if constexpr (Lefts == 2) tiles.template multiply<product, 2, 5, 6>();
    if constexpr (Lefts == 2 && Rights == 2) tiles.template multiply<product, 3, 5, 7>();
  }
  /// Rows of numbers of 32 bits, `stride` numbers apart.
  template <class Number>
  void store(Number* to, Index stride) const {
    Number* below = to + simd::kTileRows * stride;
    tiles.template store<0>(to, 4 * stride);
    if constexpr (Rights == 2) tiles.template store<1>(to + simd::kTileColumns, 4 * stride);
    if constexpr (Lefts == 2) tiles.template store<2>(below, 4 * stride);
    if constexpr (Lefts == 2 && Rights == 2) {
      tiles.template store<3>(below + simd::kTileColumns, 4 * stride);
    }
  }
};

/// f(grid, r, c) for grids that cover rows [first, last), from a whole tile on, and columns
/// [0, columns), whole tiles.
template <class Tiles, class F>
inline void for_tile_grids(const Tiles& tiles, Index first, Index last, Index columns, F&& f) {
  const auto rows = [&]<int Lefts>(Index r) __attribute__((always_inline)) {
    Index c = 0;
    for (; c + simd::kTileColumns < columns; c += 2 * simd::kTileColumns) {
      f(TileGrid<Lefts, 2, Tiles>{tiles}, r, c);
    }
    if (c < columns) f(TileGrid<Lefts, 1, Tiles>{tiles}, r, c);
  };
  Index r = first / simd::kTileRows * simd::kTileRows;
  for (; r + simd::kTileRows < last; r += 2 * simd::kTileRows) rows.template operator()<2>(r);
  if (r < last) rows.template operator()<1>(r);
}

/// Along with `Rights` tiles side by side of rows of `stride` elements, that begin `offset`
/// elements from the first row's beginning on and `read` bytes after what is read first: asks for
/// as much of what lies ahead.
template <simd::Ask ask, int Rights, class T>
[[gnu::always_inline]] inline void ask_for_tiles(const Ahead<T>& ahead, Index offset, Index stride,
                                                 Index read) {
  constexpr int rows = static_cast<int>(simd::kTileRows);
  if constexpr (ask == simd::Ask::apart) {
    ahead.lines.after(read).template ask<Rights * rows>(0);
  } else {
    constexpr int bytes = Rights * static_cast<int>(simd::kTileBytes);
    constexpr int vectors = bytes / (simd::kLanes * static_cast<int>(sizeof(T)));
    TERSEKV_HOST_UNROLL for (int row = 0; row < rows; ++row) {
      simd::prefetch<ask, vectors>(ahead.rows + offset + row * stride);
    }
  }
}

}  // namespace tersekv::detail
