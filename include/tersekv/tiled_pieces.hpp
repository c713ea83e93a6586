// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/tile_grid.hpp"

namespace tersekv::detail {

/// Tiles multiply numbers of BFloat16: so many hold all of a T, as their sum; of 16 bits, as more
/// take as long as vectors of floats.
template <class T>
inline constexpr int kPieces = 0;
template <>
inline constexpr int kPieces<Half> = 2;
template <>
inline constexpr int kPieces<BFloat16> = 1;
/// Of a query's elements, which are floats: all of them. Of shares, which meet what was rounded to
/// 2^-12 or 2^-9 of it when it was stored: they are rounded to 2^-16.
inline constexpr int kQueryPieces = 3, kSharePieces = 2;

/// Terms that a tile's row adds up.
inline constexpr Index kTileTerms = simd::kTileBytes / 2;
inline Index whole_tile_terms(Index terms) { return whole_tiles(terms, kTileTerms); }

/// What of x is left when the BFloat16 in its upper half is taken away.
inline simd::Floats rest_of(simd::Floats x) {
  return x - std::bit_cast<simd::Floats>(std::bit_cast<simd::Words>(x) & 0xffff0000u);
}

/// What is multiplied: of each piece rows of `terms` numbers, the pieces `piece` numbers apart.
struct LeftPieces {
  std::uint16_t* at = nullptr;  ///< the bits of BFloat16s
  Index terms = 0, piece = 0;
};
/// By what: of each piece the terms in pairs, [terms / 2, columns, 2].
struct RightPieces {
  std::uint16_t* at = nullptr;
  Index columns = 0, piece = 0;
};

/// Row r of `to`: row[0, n) in Pieces pieces, the last of them rounded, with zeros behind them.
template <int Pieces>
inline void split_row(const float* row, Index n, const LeftPieces& to, Index r) {
  std::uint16_t* at = to.at + r * to.terms;
  for (Index i = 0; i < to.terms; i += 2 * simd::kLanes, at += 2 * simd::kLanes) {
    simd::Floats x[2] = {};
    if (i + 2 * simd::kLanes <= n) {
      x[0] = simd::load(row + i);
      x[1] = simd::load(row + i + simd::kLanes);
    } else if (i < n) {
      std::memcpy(x, row + i, static_cast<std::size_t>(n - i) * sizeof(float));
    }
    TERSEKV_HOST_UNROLL for (int p = 0; p < Pieces; ++p) {
      const simd::Words half = simd::Words{} + (p + 1 < Pieces ? 0 : 0x8000u);
      const auto piece = simd::upper_halves(std::bit_cast<simd::Words>(x[0]) + half,
                                            std::bit_cast<simd::Words>(x[1]) + half);
      std::memcpy(at + p * to.piece, &piece, sizeof piece);
      x[0] = rest_of(x[0]);
      x[1] = rest_of(x[1]);
    }
  }
}
/// How many pieces row r has that are not all 0.
template <int Pieces>
inline int pieces_of_row(const LeftPieces& rows, Index r) {
  int count = Pieces;
  for (; count > 0; --count) {
    const std::uint16_t* at = rows.at + (count - 1) * rows.piece + r * rows.terms;
    simd::Ints some = {};
    for (Index i = 0; i < rows.terms; i += 2 * simd::kLanes) some |= simd::load_bytes(at + i);
    if (simd::any(some & 0x7fff7fff)) break;
  }
  return count;
}

/// `rows` rows of to.columns numbers, `stride` apart, in pieces: a term each, with zeros behind
/// them up to whole tiles. What is read later is asked for: as much from `ahead` on.
template <class T>
[[gnu::noinline]] void split_terms(const T* rows, const T* ahead, Index stride, Index num_rows,
                                   const RightPieces& to) {
  const Index terms = whole_tile_terms(num_rows);
  for (Index i = 0; i < terms; i += 2) {
    std::uint16_t* at = to.at + i * to.columns;
    const T *even = i < num_rows ? rows + i * stride : nullptr,
            *odd = i + 1 < num_rows ? even + stride : nullptr;
    for (Index c = 0; c < to.columns; c += simd::kLanes, at += 2 * simd::kLanes) {
      if (c % kTileTerms == 0 && i < num_rows) {
        simd::prefetch<simd::Ask::far, 1>(ahead + i * stride + c);
        simd::prefetch<simd::Ask::far, 1>(ahead + (i + 1) * stride + c);
      }
      simd::Floats low = {}, high = {};
      if (even != nullptr) low = simd::load(even + c);
      if (odd != nullptr) high = simd::load(odd + c);
      TERSEKV_HOST_UNROLL for (int p = 0; p < kPieces<T>; ++p) {
        const simd::Words pair = std::bit_cast<simd::Words>(low) >> 16 |
                                 (std::bit_cast<simd::Words>(high) & 0xffff0000u);
        std::memcpy(at + p * to.piece, &pair, sizeof pair);
        low = rest_of(low);
        high = rest_of(high);
      }
    }
  }
}

/// out[r, c] = <left r, right c> for rows [first, last), in whole tiles, and all columns. Of the
/// products of two pieces those count that a float would hold, small ones first, so that they are
/// added up among themselves.
template <int RightCount, class Tiles>
inline void piece_products(const Tiles& tiles, const LeftPieces& left, int left_count,
                           const RightPieces& right, Index first, Index last, float* out,
                           Index stride) {
  const auto products = [&]<int Lefts, int Rights>(
      const TileGrid<Lefts, Rights, Tiles>& grid, Index r, Index c) __attribute__((always_inline)) {
    grid.clear();
    for (int order = kQueryPieces - 1; order >= 0; --order) {
      for (int p = std::max(0, order - RightCount + 1); p <= std::min(order, left_count - 1); ++p) {
        const std::uint16_t* a = left.at + p * left.piece + r * left.terms;
        const std::uint16_t* b = right.at + (order - p) * right.piece + 2 * c;
        for (Index i = 0; i < left.terms; i += kTileTerms) {
          grid.template add<simd::TileProduct::pairs>(
              reinterpret_cast<const std::byte*>(a + i), 2 * left.terms,
              reinterpret_cast<const std::byte*>(b + i * right.columns), 4 * right.columns);
        }
      }
    }
    grid.store(out + r * stride + c, stride);
  };
  for_tile_grids(tiles, first, last, right.columns, products);
}

/// The products of a request of many query rows over keys and values of 16 bits, where there are
/// tile registers: pages are taken apart once for all rows, and a row's results are the same bits
/// whatever the other rows.
template <class Key, class Value, class Tiles = simd::Tiles>
class TiledPieces {
 public:
  static constexpr bool exist = Tiles::exist && kPieces<Key> > 0 && kPieces<Value> > 0;
  static bool fits(Index head_dim, Index block) {
    return exist && head_dim % simd::kTileColumns == 0 && block % kTileTerms == 0;
  }

  TiledPieces(const AttentionRequest& request, Index rows, Index head_dim, Index block,
              const AttentionBuffers& buffers)
      : rows_(rows),
        dim_(head_dim),
        on_(fits(head_dim, block) && request.tiling == Tiling::chunk && buffers.tiled != nullptr &&
            Tiles::granted()) {
    if (!on_) return;
    const Index whole = whole_tile_rows(rows), dims = whole_tile_terms(head_dim);
    queries_ = {reinterpret_cast<std::uint16_t*>(buffers.tiled), dims, whole * dims};
    shares_ = {queries_.at + kQueryPieces * queries_.piece, block, kRowsAtOnce * block};
    page_ = shares_.at + kSharePieces * shares_.piece;
    products_ = reinterpret_cast<float*>(page_ + kPieces<Half> * dims * block);
  }
  /// Floats of memory for a request.
  static Index room(Index rows, Index head_dim, Index block) {
    const Index whole = whole_tile_rows(rows), dims = whole_tile_terms(head_dim);
    return (kQueryPieces * whole * dims + kSharePieces * kRowsAtOnce * block +
            kPieces<Half> * dims * block) /
               2 +
           kRowsAtOnce * head_dim;
  }
  bool on() const { return exist && on_; }

  /// All rows of the request.
  void make_queries(const float* query, float scale) {
    scale_ = scale;
    query_pieces_ = 0;
    for (Index r = 0; r < rows_; ++r) {
      split_row<kQueryPieces>(query + r * dim_, dim_, queries_, r);
      query_pieces_ = std::max(query_pieces_, pieces_of_row<kQueryPieces>(queries_, r));
    }
  }
  /// out[r, i] for rows from `first` on and the entries whose keys are at `keys`, of a page of
  /// `page_size`: in whole tiles, of rows, too.
  void logits(const Key* keys, const Ahead<Key>& ahead, bool, const float*, Index page_size,
              Index entries, Index first, float* out, Index stride) const {
    if constexpr (exist) {
      const Index columns = padded_dim(entries);
      const RightPieces page{page_, columns, queries_.terms * columns};
      split_terms(keys, ahead.rows, page_size, dim_, page);
      piece_products<kPieces<Key>>(Tiles(), queries_, query_pieces_, page, first, rows_, out,
                                   stride);
      for (Index r = first; r < rows_; ++r) {
        for (Index i = 0; i < columns; i += simd::kLanes) {
          float* at = out + r * stride + i;
          simd::store(at, simd::load(at) * scale_);
        }
      }
    }
  }
  /// sums[r, d] = factors[r] * sums[r, d] + sum_i exponentials[r, i] * values[i, d] for rows from
  /// `first` on.
  void values(const Value* values, const Ahead<Value>& ahead, bool, const float*, Index entries,
              const float* exponentials, Index stride, Index first, const float* factors,
              float* sums, Index sum_stride) const {
    if constexpr (exist) {
      const LeftPieces shares{shares_.at, whole_tile_terms(entries), shares_.piece};
      const RightPieces page{page_, dim_, shares.terms * dim_};
      split_terms(values, ahead.rows, dim_, entries, page);
      for (Index start = first / kRowsAtOnce * kRowsAtOnce; start < rows_; start += kRowsAtOnce) {
        const Index from = std::max(first, start), end = std::min(start + kRowsAtOnce, rows_);
        for (Index r = from; r < end; ++r) {
          split_row<kSharePieces>(exponentials + r * stride, entries, shares, r - start);
        }
        piece_products<kPieces<Value>>(Tiles(), shares, kSharePieces, page, from - start,
                                       end - start, products_, dim_);
        for (Index r = from; r < end; ++r) {
          const float* product = products_ + (r - start) * dim_;
          float* to = sums + r * sum_stride;
          const simd::Floats factor = simd::broadcast(factors[r]);
          for (Index j = 0; j < dim_; j += simd::kLanes) {
            simd::store(to + j, simd::load(to + j) * factor + simd::load(product + j));
          }
        }
      }
    }
  }

 private:
  /// Whose shares stay in the nearest cache.
  static constexpr Index kRowsAtOnce = 2 * simd::kTileRows;

  Index rows_, dim_;
  bool on_;
  LeftPieces queries_, shares_;
  float scale_ = 0;
  int query_pieces_ = 0;
  std::uint16_t* page_ = nullptr;
  float* products_ = nullptr;
};

}  // namespace tersekv::detail
