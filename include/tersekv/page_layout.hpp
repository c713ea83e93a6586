// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/int8.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

/// Where the pages of a head lie, in order.
using PageTable = std::span<std::byte* const>;

/// Where what a page holds lies, in bytes. A page holds `page_size` entries, in two parts. Of the
/// first, what attention reads, in the order in which it does:
///
///   keys          [head_dim, page_size]   KeyCodec; d-major, so that the logits of a page need no
///                                         horizontal sums; Int8: [head_dim / 4 rounded up,
///                                         page_size, 4]
///   key scales    [page_size]             float, only if KeyCodec is scaled
///   value scales  [page_size]             float, only if ValueCodec is scaled
///   weights       [page_size]             float, only if the policy merges
///   values        [page_size, head_dim]   ValueCodec; Int8: [page_size / 4, head_dim, 4]
///
/// and of the second, its columns, which policies go through by themselves:
///
///   positions     [page_size]             int32
///   statistics    [statistics, page_size] 4 bytes each, the policy's
///
/// Of pages that lie in one block, so do the first parts, then the positions of all, then a
/// statistic of all, and so on: who fetches ahead along memory then fetches what is wanted.
struct PageLayout {
  Index page_size = 0, head_dim = 0, statistics = 0;
  Index registers = 0;                   ///< the policy's numbers per head, beside the pages
  int shift = 0;                         ///< log2(page_size)
  Index key_bytes = 0, value_bytes = 0;  ///< of one entry's, its scale included
  bool has_weights = false;
  /// From the start of the first part.
  Index key_scales_at = 0, value_scales_at = 0, weights_at = 0, values_at = 0;
  /// From where a table of columns points to, and from one statistic to the next.
  Index positions_at = 0, statistics_at = 0, column_stride = 0;
  Index columns_at = 0, column_bytes = 0;  ///< bytes of the first part, and of each column
  Index page_bytes = 0;                    ///< of all

  PageLayout() = default;  // no aggregate: fields in parentheses would be taken in any order

  template <class KeyCodec, class ValueCodec>
  static PageLayout of(Index page_size, Index head_dim, bool has_weights, Index statistics,
                       Index registers) {
    PageLayout l;
    l.page_size = page_size;
    l.head_dim = head_dim;
    l.statistics = statistics;
    l.registers = registers;
    while ((Index{1} << l.shift) < page_size) ++l.shift;
    constexpr Index pack = Codec<KeyCodec>::pack;
    const Index key = (head_dim + pack - 1) / pack * pack * Index{sizeof(KeyCodec)};
    const Index value = head_dim * Index{sizeof(ValueCodec)};
    l.key_bytes = key + (Codec<KeyCodec>::scaled ? 4 : 0);
    l.value_bytes = value + (Codec<ValueCodec>::scaled ? 4 : 0);
    l.has_weights = has_weights;
    l.key_scales_at = page_size * key;
    l.value_scales_at = page_size * l.key_bytes;
    l.weights_at = l.value_scales_at + page_size * (l.value_bytes - value);
    l.values_at = l.weights_at + (has_weights ? 4 * page_size : 0);
    // Attention reads values in whole vectors, past the last one: into nobody else's memory.
    constexpr Index value_pack = Codec<ValueCodec>::pack;
    const Index past_last =
        (padded_dim(head_dim) - head_dim) * value_pack * Index{sizeof(ValueCodec)};
    l.columns_at = (l.values_at + page_size * value + past_last + 63) / 64 * 64;
    l.column_bytes = 4 * page_size;  // whole cache lines, as pages hold 16 entries and more
    l.page_bytes = l.columns_at + l.columns() * l.column_bytes;
    return l.in_blocks_of(1);
  }

  Index columns() const { return 1 + statistics; }
  /// For pages that come in blocks of so many.
  PageLayout in_blocks_of(Index pages) const {
    PageLayout l = *this;
    l.positions_at = 0;
    l.column_stride = l.statistics_at = pages * column_bytes;
    return l;
  }
  /// For pages in one piece, the second part behind the first: one table tells where both are.
  PageLayout in_one_piece() const {
    PageLayout l = in_blocks_of(1);
    l.positions_at += columns_at;
    l.statistics_at += columns_at;
    return l;
  }
};

}  // namespace tersekv
