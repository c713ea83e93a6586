// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tersekv/attention_bytes.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/byte_digits.hpp"
#include "tersekv/config.hpp"
#include "tersekv/int8.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/tile_grid.hpp"

namespace tersekv::detail {

/// Rows of numbers in two digits each, as tiles multiply them: eight rows of lower digits, of
/// upper ones, and so on.
struct DigitRows {
  static constexpr Index kBlock = simd::kTileRows / kDigits, kRowsAtOnce = 2 * kBlock;

  std::byte* digits = nullptr;
  Index numbers = 0;  ///< of a row

  /// The tiles' row of the lower digits of row r; the upper ones are kBlock rows below.
  static Index tile_row(Index r) { return r / kBlock * simd::kTileRows + r % kBlock; }
  std::byte* lower(Index r) const { return digits + tile_row(r) * numbers; }
  std::byte* upper(Index r) const { return lower(r) + kBlock * numbers; }
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

/// f(r, c, products) for rows [first, last) of `left`, no more than kRowsAtOnce, and kLanes columns
/// at a time: what their digits' sums stand for. Of `right`, four terms of `columns` columns lie
/// together, and rows of such are `stride` bytes apart. `sums` [2 kTileRows, columns].
template <simd::TileProduct product, class Tiles, class F>
inline void digit_products(const Tiles& tiles, const DigitRows& left, const Int8* right,
                           Index columns, Index stride, Index first, Index last, std::int32_t* sums,
                           F&& f) {
  const auto* bytes = reinterpret_cast<const std::byte*>(right);
  const Index start = DigitRows::tile_row(first) / simd::kTileRows * simd::kTileRows;
  for_tile_grids(
      tiles, start, DigitRows::tile_row(last - 1) + 1, columns,
      [&]<int Lefts, int Rights>(const TileGrid<Lefts, Rights, Tiles>& grid, Index row, Index c)
          __attribute__((always_inline)) {
            grid.clear();
            for (Index i = 0; i < left.numbers; i += simd::kTileBytes) {
              grid.template add<product>(left.digits + row * left.numbers + i, left.numbers,
                                         bytes + i / 4 * stride + 4 * c, stride);
            }
            grid.store(sums + (row - start) * columns + c, columns);
          });
  for (Index r = first; r < last; ++r) {
    const std::int32_t* lower = sums + (DigitRows::tile_row(r) - start) * columns;
    const std::int32_t* upper = lower + DigitRows::kBlock * columns;
    for (Index c = 0; c < columns; c += simd::kLanes) {
      f(r, c, from_digit_sums(simd::load_bytes(lower + c), simd::load_bytes(upper + c)));
    }
  }
}

/// As TiledPieces, over bytes, with the bits that vectors would give.
template <class Key, class Value, class Tiles = simd::Tiles>
class TiledBytes {
 public:
  static constexpr bool exist = Tiles::exist && Codec<Key>::scaled && Codec<Value>::scaled;

  TiledBytes(const AttentionRequest& request, Index rows, Index head_dim, Index block,
             const AttentionBuffers& buffers)
      : buffers_(buffers),
        rows_(rows),
        queries_{reinterpret_cast<std::byte*>(buffers.byte_queries), head_dim},
        sums_(reinterpret_cast<std::int32_t*>(buffers.tiled)),
        on_(exist && request.tiled && head_dim % simd::kTileBytes == 0 &&
            block % simd::kTileBytes == 0 && buffers.tiled != nullptr && Tiles::granted()) {}
  /// Numbers of four bytes of memory for a request.
  static Index room(Index, Index head_dim, Index block) {
    return kRows * kDigits * std::max(head_dim, block);
  }
  bool on() const { return on_; }

  void make_queries(const float* query, float scale) const {
    for (Index r = 0; r < rows_; ++r) {
      buffers_.byte_units[r] = make_digit_row(query + r * queries_.numbers, scale, queries_, r);
    }
  }
  void logits(const Key* keys, const Key* ahead, const float* scales, Index page_size,
              Index entries, Index first, float* out, Index stride) const {
    if constexpr (exist) {
      simd::ask<2>(ahead, page_size * queries_.numbers);
      for (Index start = first / kRows * kRows; start < rows_; start += kRows) {
        digit_products<simd::TileProduct::signed_bytes>(
            Tiles(), queries_, keys, padded_dim(entries), 4 * page_size, std::max(first, start),
            std::min(rows_, start + kRows),
            sums_, [&](Index r, Index i, simd::Floats product) __attribute__((always_inline)) {
              const simd::Floats unscaled = simd::keep_order(product * buffers_.byte_units[r]);
              simd::store(out + r * stride + i, simd::Floats{} + unscaled * simd::load(scales + i));
            });
      }
    }
  }
  void values(const Value* values, const Value* ahead, const float* scales, Index entries,
              const float* exponentials, Index stride, Index first, const float* factors,
              float* sums, Index sum_stride) const {
    if constexpr (exist) {
      simd::ask<2>(ahead, entries * queries_.numbers);
      alignas(64) std::byte digits[std::size_t{kRows * kDigits * kSection}];
      const DigitRows shares{digits, whole_tiles(entries, simd::kTileBytes)};
      for (Index start = first / kRows * kRows; start < rows_; start += kRows) {
        const Index from = std::max(first - start, Index{0});
        const Index to = std::min(rows_ - start, kRows);
        float units[std::size_t{kRows}];
        for (Index r = from; r < to; ++r) {
          units[r] =
              make_digit_shares(exponentials + (start + r) * stride, scales, entries, shares, r);
        }
        digit_products<simd::TileProduct::unsigned_by_signed_bytes>(
            Tiles(), shares, values, queries_.numbers, 4 * queries_.numbers, from, to,
            sums_, [&](Index r, Index j, simd::Floats product) __attribute__((always_inline)) {
              float* at = sums + (start + r) * sum_stride + j;
              const simd::Floats joining = simd::keep_order(product * units[r]);
              simd::store(at, simd::load(at) * factors[start + r] + joining);
            });
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
