// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/attention_sums.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/simd_math.hpp"

namespace tersekv::detail {

/// Exponentials of the rows of a group, [tiles, rows, tile], relative to a power of two of each
/// row's, and what makes attention of them.
struct KeptExponentials {
  const float* data;
  Index tile, stride;     ///< entries of a tile, and floats from one to the next
  const float* powers;    ///< [rows]
  const float* inverses;  ///< [rows]: 1 / the sum of all of the row's exponentials
  /// A row's least share: all that is lower is equal. No less than a normal float, as each
  /// operation on others takes some Intel processors 150 cycles.
  float least(Index row) const { return 0x1p-122f * std::max(inverses[row], 0x1p-4f); }
  KeptExponentials from(Index row) const {
    return {data + row * tile, tile, stride, powers + row, inverses + row};
  }
};

/// out[i] = max or sum over Rows rows, and over what is there if `more`, of shares of no less than
/// `least`, divided by `divisor`, for `entries` entries in whole vectors: the last ones into
/// `tail`, where they fill none.
template <int Rows, bool highest>
inline void join_rows(const KeptExponentials& kept, Index entries, bool more, float divisor,
                      float* out, float* tail) {
  simd::Floats units[std::size_t{Rows}], least[std::size_t{Rows}];
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    units[r] = simd::broadcast(kept.powers[r] * kept.inverses[r]);
    least[r] = simd::broadcast(kept.least(r));
  }
  const Index whole = entries / simd::kLanes * simd::kLanes;
  const float* rows = kept.data;
  for (Index start = 0; start < entries; start += kept.tile, rows += kept.stride) {
    // One loop for the tail, too: -ffast-math may round otherwise in every copy of a body.
    for (Index i = start; i < std::min(start + kept.tile, entries); i += simd::kLanes) {
      float* to = i < whole ? out + i : tail;
      simd::Floats all = more ? simd::load(to) : simd::Floats{};
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Floats exponentials = simd::load(rows + r * kept.tile + (i - start));
        const simd::Floats share = simd::max(exponentials * units[r], least[r]);
        all = highest ? simd::max(all, share) : all + share;
      }
      simd::store(to, divisor == 1.0f ? all : all / divisor);
    }
  }
}

/// out[i] = attention to `entries` entries, reduced over `rows` rows.
inline void join_tiles(const KeptExponentials& kept, Index rows, GroupReduce reduce, Index entries,
                       float* out) {
  const Index whole = entries / simd::kLanes * simd::kLanes;
  const std::size_t left = static_cast<std::size_t>(entries - whole) * sizeof(float);
  float tail[std::size_t{simd::kLanes}] = {};  // there is room for `entries` alone
  for (Index r = 0; r < rows; r += kRowBlock) {
    const bool last = r + kRowBlock >= rows;
    const float divisor = last && reduce == GroupReduce::mean ? static_cast<float>(rows) : 1.0f;
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, rows - r), [&]<int Rows>() {
      if (reduce == GroupReduce::max) {
        join_rows<Rows, true>(kept.from(r), entries, r > 0, divisor, out, tail);
      } else {
        join_rows<Rows, false>(kept.from(r), entries, r > 0, divisor, out, tail);
      }
    });
  }
  if (left > 0) std::memcpy(out + whole, tail, left);
}

/// A tile's power, compared with the highest, from which on it and its exponentials together are
/// more than a float can say.
inline constexpr float kFarBelow = -64;

/// Attention per entry of a token's request, out of exponentials [tiles, group, tile] each relative
/// to the power of its row in its tile; `total` and `inverses` are those of all. What a row's
/// entries get is exact down to 2^-122, and all that is lower is equal. Overwrites what is kept,
/// and the powers.
inline void entry_attention(const AttentionRequest& request, const SharedBuffers& shared,
                            Index tile, const AttentionSums& total, const float* inverses) {
  const Index group = total.rows(), tiles = (request.visible + tile - 1) / tile;
  for (Index t = 0; t < tiles; ++t) {
    for (Index g = 0; g < group; ++g) {
      float& power = shared.powers[t * group + g];
      power -= total.power(g);
      if (power >= kFarBelow) continue;
      // With weights exponentials are up to 2^40, which powers that stop at 2^-125 would leave.
      float* row = shared.kept + (t * group + g) * tile;
      const simd::Floats factor = simd::exp2(simd::broadcast(kFarBelow));
      for (Index i = 0; i < padded_dim(std::min(tile, request.visible - t * tile));
           i += simd::kLanes) {
        simd::store(row + i, simd::load(row + i) * factor);
      }
      power -= kFarBelow;
    }
  }
  for (Index i = 0; i < padded_dim(tiles * group); i += simd::kLanes) {
    simd::store(shared.powers + i, simd::exp2(simd::load(shared.powers + i)));
  }
  for (Index t = 0; t < tiles;) {
    const float* powers = shared.powers + t * group;
    const Index start = t * tile;
    do {
      ++t;  // the next tile is mostly relative to the same
    } while (t < tiles && std::equal(powers, powers + group, shared.powers + t * group));
    join_tiles({shared.kept + start * group, tile, tile * group, powers, inverses}, group,
               request.reduce, std::min(t * tile, request.visible) - start,
               request.attention + start);
  }
}

}  // namespace tersekv::detail
