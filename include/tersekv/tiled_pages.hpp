// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/simd_spread.hpp"
#include "tersekv/tile_grid.hpp"
#include "tersekv/tiled_pieces.hpp"

// Products of a few query rows by tile registers with pages of BFloat16 as they lie. Tiles multiply
// pairs of terms, and the terms of a page are not in pairs: a column and the next one take a pair's
// places. A row that is multiplied has every other number 0, twice: one adds up even columns, one
// odd ones. Half of the products are with 0, but nothing is taken apart, and rows are few.

namespace tersekv::detail {

/// Rows that are multiplied, in pieces, each a row for even columns and one for odd ones: numbers
/// and zeros in turns. Tile by tile: so many terms of all rows, then the next.
struct SpreadRows {
  static constexpr Index kTerms = simd::kTileRows;

  std::uint32_t* at = nullptr;
  Index rows = 0;  ///< of the tiles' rows, whole tiles
  int pieces = 0;

  static Index tile_rows(Index rows, int pieces) { return whole_tile_rows(2 * pieces * rows); }
  Index tile_row(Index r, int piece) const { return 2 * (pieces * r + piece); }
  /// Terms [term, term + kTerms) of rows from `row` on.
  std::uint32_t* tile(Index row, Index term) const { return at + rows * term + row * kTerms; }

  /// row[0, terms), whole tiles, as row r. What of it is in no piece is rounded away.
  template <int Pieces>
  void set(Index r, const float* row, Index terms) const {
    for (Index i = 0; i < terms; i += simd::kLanes) {
      std::uint32_t* to = tile(tile_row(r, 0), i / kTerms * kTerms) + i % kTerms;
      simd::Floats x = simd::load(row + i);
      TERSEKV_HOST_UNROLL for (int p = 0; p < Pieces; ++p) {
        const simd::Words bits = std::bit_cast<simd::Words>(x) + (p + 1 < Pieces ? 0 : 0x8000u);
        const simd::Words low = bits >> 16, high = bits & 0xffff0000u;
        std::memcpy(to + 2 * p * kTerms, &low, sizeof low);
        std::memcpy(to + (2 * p + 1) * kTerms, &high, sizeof high);
        x = rest_of(x);
      }
    }
  }
};

/// How many pieces hold all of x[0, n), whole vectors.
inline int pieces_of(const float* x, Index n) {
  simd::Words second = {}, third = {};
  for (Index i = 0; i < n; i += simd::kLanes) {
    const simd::Floats some = simd::load(x + i);
    second |= std::bit_cast<simd::Words>(some);
    third |= std::bit_cast<simd::Words>(rest_of(some));
  }
  const auto any = [](simd::Words bits) {
    return simd::any(std::bit_cast<simd::Ints>(bits & 0xffffu));
  };
  return any(third) ? 3 : any(second) ? 2 : 1;
}

/// The products of a request of a single token over keys and values of BFloat16, where there are
/// tile registers. A row's results are the same bits whatever the other rows.
template <class Key, class Value, class Tiles = simd::Tiles>
class TiledPages {
  /// Terms and columns of a tile.
  static constexpr Index kTerms = SpreadRows::kTerms, kColumns = 2 * simd::kTileColumns;

 public:
  static constexpr bool exist =
      Tiles::exist && std::is_same_v<Key, BFloat16> && std::is_same_v<Value, BFloat16>;
  static bool fits(Index head_dim, Index block) {
    return exist && head_dim % kColumns == 0 && block % kColumns == 0;
  }
  /// Whether so many rows of a single token are worked on, and in less time than by vectors.
  static bool pays(Index rows, Index head_dim, Index block) {
    return rows >= 7 && fits(head_dim, block) && Tiles::granted();
  }

  TiledPages(const AttentionRequest& request, Index rows, Index head_dim, Index block,
             const AttentionBuffers& buffers)
      : rows_(rows),
        dim_(head_dim),
        on_(fits(head_dim, block) && request.tiling == Tiling::token && buffers.tiled != nullptr &&
            Tiles::granted()) {
    if (!on_) return;
    const Index query_rows = SpreadRows::tile_rows(rows, kQueryPieces);
    queries_.at = reinterpret_cast<std::uint32_t*>(buffers.tiled);
    shares_.at = queries_.at + query_rows * head_dim;
    shares_.pieces = kSharePieces;
    shares_.rows = SpreadRows::tile_rows(rows, kSharePieces);
    products_ = reinterpret_cast<float*>(shares_.at + shares_.rows * block);
    stride_ = std::max(head_dim, block) / 2;
    tail_ = reinterpret_cast<BFloat16*>(products_ + query_rows * stride_);
  }
  /// Floats of memory for a request.
  static Index room(Index rows, Index head_dim, Index block) {
    const Index query_rows = SpreadRows::tile_rows(rows, kQueryPieces);
    return query_rows * (head_dim + std::max(head_dim, block) / 2) +
           SpreadRows::tile_rows(rows, kSharePieces) * block + kColumns / 2 * head_dim;
  }
  bool on() const { return exist && on_; }

  void make_queries(const float* query, float scale) {
    scale_ = scale;
    queries_.pieces = pieces_of(query, rows_ * dim_);
    queries_.rows = SpreadRows::tile_rows(rows_, queries_.pieces);
    with_constant<kQueryPieces>(queries_.pieces, [&]<int Pieces>() {
      for (Index r = 0; r < rows_; ++r) queries_.set<Pieces>(r, query + r * dim_, dim_);
    });
  }
  /// out[r, i] for the entries whose keys are at `keys`, of a page of `page_size`, and on to whole
  /// tiles of columns. What is read later is asked for.
  void logits(const Key* keys, const Ahead<Key>& ahead, bool from_memory, const float*,
              Index page_size, Index entries, Index, float* out, Index stride) const {
    if constexpr (exist) {
      const Index whole = entries / kColumns * kColumns;
      Right right{keys, dim_, whole, page_size, nullptr, ahead, from_memory};
      multiply(queries_, right, 0);
      if (whole < entries) {
        copy_live(keys + whole, page_size, entries - whole);
        right = {tail_, dim_, kColumns, kColumns, nullptr, Ahead<Key>::none(tail_), false};
        multiply(queries_, right, whole);
      }
      with_constant<kQueryPieces>(queries_.pieces, [&]<int Pieces>() {
        for_each_sum<Pieces>(
            padded_dim(entries), [&](Index r, Index c, simd::Floats sum)
                                     __attribute__((always_inline)) {
                                       simd::store(out + r * stride + c, sum * scale_);
                                     });
      });
    }
  }
  /// sums[r, d] = factors[r] * sums[r, d] + sum_i exponentials[r, i] * values[i, d]; zeros follow
  /// the exponentials up to whole vectors.
  void values(const Value* values, const Ahead<Value>& ahead, bool from_memory, const float*,
              Index entries, const float* exponentials, Index stride, Index, const float* factors,
              float* sums, Index sum_stride) const {
    if constexpr (exist) {
      const Index whole = entries / kTerms * kTerms;
      for (Index r = 0; r < rows_; ++r) {
        shares_.set<kSharePieces>(r, exponentials + r * stride, whole_tiles(entries, kTerms));
      }
      if (whole < entries) {  // what is not live may be no number, and would meet zeros
        const Index live = (entries - whole) * dim_;
        std::copy_n(values + whole * dim_, live, tail_);
        std::fill(tail_ + live, tail_ + kTerms * dim_, BFloat16{});
      }
      multiply(shares_,
               {values, whole, dim_, dim_, whole < entries ? tail_ : nullptr, ahead, from_memory},
               0);
      for_each_sum<kSharePieces>(
          dim_, [&](Index r, Index c, simd::Floats sum) __attribute__((always_inline)) {
            float* to = sums + r * sum_stride + c;
            simd::store(to, simd::load(to) * factors[r] + sum);
          });
    }
  }

 private:
  /// What rows are multiplied by: `terms` rows of `columns` numbers, `stride` apart, all in whole
  /// tiles, and kTerms more in `rest` if that is not null; and what is asked for meanwhile.
  struct Right {
    const BFloat16* at;
    Index terms, columns, stride;
    const BFloat16* rest;
    Ahead<BFloat16> ahead;
    bool from_memory;
  };

  /// Into products_ from column `to` on.
  void multiply(const SpreadRows& left, const Right& right, Index to) const {
    with_ask_of<kRowBlock>(right.from_memory, right.ahead, [&]<simd::Ask ask>() {
      // As numbers of its own: what tiles do may change any other, as far as a compiler knows.
      const Index step = left.rows * kTerms, size = right.stride, terms = right.terms;
      float* const products = products_ + to / 2;
      const auto grid_of = [ =, this, &right ]<int Lefts, int Rights>(
          const TileGrid<Lefts, Rights, Tiles>& grid, Index r, Index c)
          __attribute__((always_inline)) {
        const std::uint32_t* tile = left.tile(r, 0);
        const BFloat16* at = right.at + 2 * c;
        const auto add = [&](const BFloat16* rows) __attribute__((always_inline)) {
          grid.template add<simd::TileProduct::pairs>(
              reinterpret_cast<const std::byte*>(tile), simd::kTileBytes,
              reinterpret_cast<const std::byte*>(rows), 2 * size);
        };
        grid.clear();
        for (Index i = 0; i < terms; i += kTerms, at += kTerms * size, tile += step) {
          if (r == 0)
            ask_for_tiles<ask, Rights>(right.ahead, i * size + 2 * c, size,
                                       4 * c * terms + i * Rights * simd::kTileBytes);
          add(at);
        }
        if (right.rest != nullptr) add(right.rest + 2 * c);
        grid.store(products + r * stride_ + c, stride_);
      };
      for_tile_grids(Tiles(), 0, left.tile_row(rows_, 0), right.columns / 2, grid_of);
    });
  }

  /// f(r, c, sums) for rows of the request and kLanes columns at a time, out of products_: of
  /// pieces small ones first.
  template <int Pieces, class F>
  void for_each_sum(Index columns, F&& f) const {
    for (Index r = 0; r < rows_; ++r) {
      const float* row = products_ + 2 * Pieces * r * stride_;
      for (Index c = 0; c < columns; c += 2 * simd::kLanes) {
        simd::Floats sums[2] = {};
        TERSEKV_HOST_UNROLL for (int p = Pieces - 1; p >= 0; --p) {
          const float* even = row + 2 * p * stride_ + c / 2;
          sums[0] += simd::load(even);
          sums[1] += simd::load(even + stride_);
        }
        simd::in_order<2, BFloat16>(sums);
        f(r, c, sums[0]);
        f(r, c + simd::kLanes, sums[1]);
      }
    }
  }

  /// Into tail_: `live` columns of rows of `row_size` numbers, with zeros up to a tile of columns.
  /// What is not live may be anything, also no number, and a row's zeros would meet it.
  void copy_live(const BFloat16* rows, Index row_size, Index live) const {
    std::uint16_t mask[std::size_t{kColumns}] = {};
    std::fill_n(mask, live, std::uint16_t{0xffff});
    for (Index j = 0; j < dim_; ++j) {
      for (Index i = 0; i < kColumns; i += 2 * simd::kLanes) {
        const simd::Ints live_ones =
            simd::load_bytes(rows + j * row_size + i) & simd::load_bytes(mask + i);
        std::memcpy(static_cast<void*>(tail_ + j * kColumns + i), &live_ones, sizeof live_ones);
      }
    }
  }

  Index rows_, dim_;
  bool on_;
  SpreadRows queries_, shares_;
  float scale_ = 0;
  float* products_ = nullptr;  ///< [tile rows, stride_]
  Index stride_ = 0;
  BFloat16* tail_ = nullptr;  ///< [head_dim, kColumns] or [kTerms, head_dim]
};

}  // namespace tersekv::detail
