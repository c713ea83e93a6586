// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_bytes.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/byte_digits.hpp"
#include "tersekv/config.hpp"
#include "tersekv/int8.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/tile_grid.hpp"

namespace tersekv::detail {

/// Rows of numbers in two digits each, as tiles multiply them: a block of rows of lower digits, of
/// upper ones, and so on.
struct DigitRows {
  static constexpr Index kMostBlock = simd::kTileRows / kDigits, kRowsAtOnce = 2 * kMostBlock;

  std::byte* digits = nullptr;
  Index numbers = 0;         ///< of a row
  Index block = kMostBlock;  ///< rows, no more than there are

  /// The tiles' row of the lower digits of row r; the upper ones are a block below.
  Index tile_row(Index r) const { return r / block * simd::kTileRows + r % block; }
  std::byte* lower(Index r) const { return digits + tile_row(r) * numbers; }
  std::byte* upper(Index r) const { return lower(r) + block * numbers; }
};

/// scale * row[0, to.numbers), whole vectors, as row r of `to`. Returns the unit.
inline float make_digit_row(const float* row, float scale, const DigitRows& to, Index r) {
  std::byte *const low = to.lower(r), *const high = to.upper(r);
  return scale * signed_digits(row, to.numbers, [=](Index i, simd::Ints lower, simd::Ints upper) {
           simd::store_low_bytes(low + i, lower);
           simd::store_low_bytes(high + i, upper);
         });
}
/// row[i] * scales[i] for i < entries likewise, with zeros up to to.numbers.
inline float make_digit_shares(const float* row, const float* scales, Index entries,
                               const DigitRows& to, Index r) {
  alignas(64) float shares[std::size_t{kSection}];
  const float most = scaled_shares(row, scales, entries, to.numbers, shares);
  std::byte *const low = to.lower(r), *const high = to.upper(r);
  return unsigned_digits(shares, to.numbers, most, [=](Index i, simd::Ints whole) {
    simd::store_low_bytes(low + i, whole);
    simd::store_low_bytes(high + i, whole >> 8);
  });
}

/// Bytes in columns, four terms of each together, and rows of such `stride` bytes apart; and what
/// lies ahead and is asked for meanwhile, or null.
struct ByteColumns {
  const Int8* at = nullptr;
  Index columns = 0, stride = 0;
  const Ahead<Int8>* ahead = nullptr;
  bool from_memory = false;

  /// Along with `Rights` tiles side by side from term `term` and column `column` on, of `terms`.
  template <int Rights>
  [[gnu::always_inline]] void ask_for(Index term, Index column, Index terms) const {
    if (ahead == nullptr) return;
    with_ask_of<kRowBlock>(from_memory, *ahead, [&]<simd::Ask ask>() {
      ask_for_tiles<ask, Rights>(*ahead, term / 4 * stride + 4 * column, stride,
                                 column * terms + term * Rights * simd::kTileColumns);
    });
  }
};

/// f(r, c, products) for rows [first, last) of `left`, no more than kRowsAtOnce, and kLanes columns
/// of `right` at a time: what their digits' sums stand for. `sums` [2 kTileRows, columns].
template <simd::TileProduct product, class Tiles, class F>
inline void digit_products(const Tiles& tiles, const DigitRows& left, const ByteColumns& right,
                           Index first, Index last, std::int32_t* sums, F&& f) {
  const auto* bytes = reinterpret_cast<const std::byte*>(right.at);
  const Index columns = right.columns, stride = right.stride;
  const Index start = left.tile_row(first) / simd::kTileRows * simd::kTileRows;
  for_tile_grids(
      tiles, start, left.tile_row(last - 1) + 1, columns,
      [&]<int Lefts, int Rights>(const TileGrid<Lefts, Rights, Tiles>& grid, Index row, Index c)
          __attribute__((always_inline)) {
            grid.clear();
            for (Index i = 0; i < left.numbers; i += simd::kTileBytes) {
              if (row == start) right.ask_for<Rights>(i, c, left.numbers);
              grid.template add<product>(left.digits + row * left.numbers + i, left.numbers,
                                         bytes + i / 4 * stride + 4 * c, stride);
            }
            grid.store(sums + (row - start) * columns + c, columns);
          });
  for (Index r = first; r < last; ++r) {
    const std::int32_t* lower = sums + (left.tile_row(r) - start) * columns;
    const std::int32_t* upper = lower + left.block * columns;
    for (Index c = 0; c < columns; c += simd::kLanes) {
      f(r, c, from_digit_sums(simd::load_bytes(lower + c), simd::load_bytes(upper + c)));
    }
  }
}

/// The products of a request over keys and values of one byte, where there are tile registers, with
/// the bits that vectors would give.
template <class Key, class Value, class Tiles = simd::Tiles>
class TiledBytes {
 public:
  static constexpr bool exist = Tiles::exist && Codec<Key>::scaled && Codec<Value>::scaled;
  static bool fits(Index head_dim, Index block) {
    return exist && head_dim % simd::kTileBytes == 0 && block % simd::kTileBytes == 0;
  }
  /// Whether so many rows of a single token are worked on, and in less time than by vectors.
  static bool pays(Index rows, Index head_dim, Index block) {
    return rows >= 5 && fits(head_dim, block) && Tiles::granted();
  }

  TiledBytes(const AttentionRequest& request, Index rows, Index head_dim, Index block,
             const AttentionBuffers& buffers)
      : buffers_(buffers),
        rows_(rows),
        queries_{reinterpret_cast<std::byte*>(buffers.byte_queries), head_dim,
                 std::min(rows, DigitRows::kMostBlock)},
        sums_(reinterpret_cast<std::int32_t*>(buffers.tiled)),
        on_(fits(head_dim, block) && request.tiling != Tiling::none && buffers.tiled != nullptr &&
            Tiles::granted()) {}
  /// Numbers of four bytes of memory for a request.
  static Index room(Index, Index head_dim, Index block) {
    return kRows * kDigits * std::max(head_dim, block);
  }
  bool on() const { return exist && on_; }
  /// Of the tiles that are multiplied.
  Index tile_rows() const { return kDigits * queries_.block; }

  void make_queries(const float* query, float scale) const {
    for (Index r = 0; r < rows_; ++r) {
      buffers_.byte_units[r] = make_digit_row(query + r * queries_.numbers, scale, queries_, r);
    }
  }
  void logits(const Key* keys, const Ahead<Key>& ahead, bool from_memory, const float* scales,
              Index page_size, Index entries, Index first, float* out, Index stride) const {
    if constexpr (exist) {
      ByteColumns right{keys, padded_dim(entries), 4 * page_size, &ahead, from_memory};
      for (Index start = first / kRows * kRows; start < rows_; start += kRows) {
        digit_products<simd::TileProduct::signed_bytes>(
            Tiles(), queries_, right, std::max(first, start), std::min(rows_, start + kRows),
            sums_, [&](Index r, Index i, simd::Floats product) __attribute__((always_inline)) {
              const simd::Floats unscaled = simd::keep_order(product * buffers_.byte_units[r]);
              simd::store(out + r * stride + i, simd::Floats{} + unscaled * simd::load(scales + i));
            });
        right.ahead = nullptr;
      }
    }
  }
  void values(const Value* values, const Ahead<Value>& ahead, bool from_memory, const float* scales,
              Index entries, const float* exponentials, Index stride, Index first,
              const float* factors, float* sums, Index sum_stride) const {
    if constexpr (exist) {
      const Index dim = queries_.numbers;
      ByteColumns right{values, dim, 4 * dim, &ahead, from_memory};
      alignas(64) std::byte digits[std::size_t{kRows * kDigits * kSection}];
      const DigitRows shares{digits, whole_tiles(entries, simd::kTileBytes), queries_.block};
      for (Index start = first / kRows * kRows; start < rows_; start += kRows) {
        const Index from = std::max(first - start, Index{0});
        const Index to = std::min(rows_ - start, kRows);
        float units[std::size_t{kRows}];
        for (Index r = from; r < to; ++r) {
          units[r] =
              make_digit_shares(exponentials + (start + r) * stride, scales, entries, shares, r);
        }
        digit_products<simd::TileProduct::unsigned_by_signed_bytes>(
            Tiles(), shares, right, from, to,
            sums_, [&](Index r, Index j, simd::Floats product) __attribute__((always_inline)) {
              float* at = sums + (start + r) * sum_stride + j;
              const simd::Floats joining = simd::keep_order(product * units[r]);
              simd::store(at, simd::load(at) * factors[start + r] + joining);
            });
        right.ahead = nullptr;
      }
    }
  }

 private:
  static constexpr Index kRows = DigitRows::kRowsAtOnce;

  const AttentionBuffers& buffers_;
  Index rows_;
  DigitRows queries_;
  std::int32_t* sums_;
  bool on_;
};

}  // namespace tersekv::detail
