// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd.hpp"

namespace tersekv::detail {

/// Exponentials of the rows of a group, [tiles, rows, tile], relative to a power of two of each
/// row's, and what makes attention of them.
struct KeptExponentials {
  const float* data;
  Index tile, stride;     ///< entries of a tile, and floats from one to the next
  const float* powers;    ///< [rows]
  const float* inverses;  ///< [rows]: 1 / the sum of all of the row's exponentials
  KeptExponentials from(Index row) const {
    return {data + row * tile, tile, stride, powers + row, inverses + row};
  }
};

/// out[i] = max or sum over Rows rows, and over what is there if `more`, but no less than `least`,
/// divided by `divisor`, for `entries` entries in whole vectors: the last ones into `tail`, where
/// they fill none.
template <int Rows, bool highest>
inline void join_rows(const KeptExponentials& kept, Index entries, bool more, float least,
                      float divisor, float* out, float* tail) {
  simd::Floats units[std::size_t{Rows}];
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    units[r] = simd::broadcast(kept.powers[r] * kept.inverses[r]);
  }
  const Index whole = entries / simd::kLanes * simd::kLanes;
  const float* rows = kept.data;
  for (Index start = 0; start < entries; start += kept.tile, rows += kept.stride) {
    // One loop for the tail, too: -ffast-math may round otherwise in every copy of a body.
    for (Index i = start; i < std::min(start + kept.tile, entries); i += simd::kLanes) {
      float* to = i < whole ? out + i : tail;
      simd::Floats all = more ? simd::load(to) : simd::Floats{};
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Floats share = simd::load(rows + r * kept.tile + (i - start)) * units[r];
        all = highest ? simd::max(all, share) : all + share;
      }
      all = simd::max(all, simd::broadcast(least));
      simd::store(to, divisor == 1.0f ? all : all / divisor);
    }
  }
}

/// out[i] = attention to `entries` entries, reduced over `rows` rows.
inline void entry_attention(const KeptExponentials& kept, Index rows, GroupReduce reduce,
                            Index entries, float* out) {
  const Index whole = entries / simd::kLanes * simd::kLanes;
  const std::size_t left = static_cast<std::size_t>(entries - whole) * sizeof(float);
  float tail[std::size_t{simd::kLanes}] = {};  // there is room for `entries` alone
  const bool highest = reduce == GroupReduce::max;
  float least = 0;  // all that is lower is equal
  for (Index r = 0; r < rows; ++r) {
    // No less than a normal float: each operation on others takes some Intel processors 150 cycles.
    const float share = 0x1p-122f * std::max(kept.inverses[r], 0x1p-4f);
    least = highest ? std::max(least, share) : least + share;
  }
  for (Index r = 0; r < rows; r += kRowBlock) {
    const bool last = r + kRowBlock >= rows;
    const float divisor = last && reduce == GroupReduce::mean ? static_cast<float>(rows) : 1.0f;
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, rows - r), [&]<int Rows>() {
      if (highest) {
        join_rows<Rows, true>(kept.from(r), entries, r > 0, last ? least : 0.0f, divisor, out,
                              tail);
      } else {
        join_rows<Rows, false>(kept.from(r), entries, r > 0, last ? least : 0.0f, divisor, out,
                               tail);
      }
    });
  }
  if (left > 0) std::memcpy(out + whole, tail, left);
}

}  // namespace tersekv::detail
