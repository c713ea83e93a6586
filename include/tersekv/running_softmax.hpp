// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_sums.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd_math.hpp"
#include "tersekv/tile_weights.hpp"

namespace tersekv::detail {

/// The exponentials of several rows whose logits come tile by tile, and their sums, relative to a
/// power of two near the highest exponential so far. Changing that is exact, and equal logits get
/// the same attention to the bit, wherever they lie. Logits are those of powers of two.
class RunningSoftmax {
 public:
  /// Floats of memory for `rows` rows.
  static Index floats(Index rows) { return 17 * rows; }

  RunningSoftmax(float* memory, const AttentionSums& sums)
      : sums_(sums), part_(memory), factor_(memory + 16 * sums.rows()) {}

  /// From now on for `sums`, of as many rows: over no entries so far.
  void start(const AttentionSums& sums) {
    sums_ = sums;
    sums_.clear();
    std::fill_n(part_, 16 * sums.rows(), 0.0f);
  }

  /// Rows [r, last): weighted exponentials in place of the logits at `logits` [last - r, stride],
  /// `visible` of each, with zeros behind them up to `entries` in whole vectors.
  void add(Index r, Index last, float* logits, Index stride, Index visible, Index entries,
           const TileWeights& weights) {
    if (weights.kind == TileWeights::scaled) {  // rare, and so row by row: it is compiled but once
      for (; r < last; ++r, logits += stride) {
        raise<1, true>(r, logits, stride, visible, weights);
        exponentials<1, TileWeights::scaled>(r, logits, stride, visible, entries, weights);
      }
    }
    for (; r < last; r += kRowBlock, logits += kRowBlock * stride) {
      with_constant<kRowBlock>(std::min<Index>(kRowBlock, last - r), [&]<int Rows>() {
        raise<Rows, false>(r, logits, stride, visible, weights);  // plain weights overflow nothing
        if (weights.kind == TileWeights::one) {
          exponentials<Rows, TileWeights::one>(r, logits, stride, visible, entries, weights);
        } else {
          exponentials<Rows, TileWeights::plain>(r, logits, stride, visible, entries, weights);
        }
      });
    }
  }
  /// What the latest tile does to the sums of values so far, of each row that was added.
  const float* factors() const { return factor_; }
  /// After the last tile.
  void finish() {
    for (Index r = 0; r < sums_.rows(); ++r) {
      sums_.set_mass(r, static_cast<double>(simd::sum(simd::load(part_ + 16 * r))));
    }
  }

 private:
  /// Raises the powers of those rows that the tile goes beyond.
  template <int Rows, bool weighted>
  void raise(Index r, float* logits, Index stride, Index visible, const TileWeights& weights) {
    const Index padded = padded_dim(visible);
    simd::Floats highest[std::size_t{Rows}];
    TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) {
      float* row = logits + k * stride;
      // The vectors' tail repeats a live logit: it raises no power and overflows nothing.
      for (Index i = padded; i > visible;) {
        i -= simd::kLanes;
        const simd::Floats live = simd::load(row + i);
        simd::store(row + i, simd::first_lanes(live, visible - i, simd::broadcast(row[0])));
      }
      highest[k] = simd::broadcast(row[0] + (weighted ? weights.powers[0] : 0.0f));
    }
    for (Index i = 0; i < padded; i += simd::kLanes) {
      TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) {
        simd::Floats here = simd::load(logits + k * stride + i);
        if constexpr (weighted) {
          here += simd::load(weights.powers + i);
          // Behind them are weights of entries that this row does not see.
          if (i + simd::kLanes > visible) here = simd::first_lanes(here, visible - i, highest[k]);
        }
        highest[k] = simd::max(highest[k], here);
      }
    }
    bool higher = false;
    TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) {
      highest[k] = simd::round(highest[k]);
      factor_[r + k] = 1.0f;
      higher |= simd::any_above(highest[k], sums_.power(r + k));
    }
    if (!higher) return;
    TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) {
      const float power = simd::max(highest[k]), before = sums_.power(r + k);
      if (power <= before) continue;
      const simd::Floats factor = simd::exp2(simd::broadcast(before - power));
      sums_.power(r + k) = power;
      factor_[r + k] = factor[0];
      simd::store(part_ + 16 * (r + k), simd::load(part_ + 16 * (r + k)) * factor);
    }
  }

  template <TileWeights::Kind kind>
  static simd::Floats exponential(const float* logits, simd::Floats power, Index i,
                                  const TileWeights& weights) {
    const simd::Floats x = simd::load(logits);
    if constexpr (kind == TileWeights::one) return simd::exp2_over(x, power);
    if constexpr (kind == TileWeights::plain) {
      return simd::exp2_over(x, power, simd::load(weights.factors + i));
    }
    return simd::exp2_over(
        x, power,
        simd::ScaledWeight{simd::load(weights.powers + i), simd::load(weights.factors + i)});
  }

  template <int Rows, TileWeights::Kind kind>
  void exponentials(Index r, float* logits, Index stride, Index visible, Index entries,
                    const TileWeights& weights) {
    simd::Floats power[std::size_t{Rows}], part[std::size_t{Rows}];
    TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) {
      power[k] = simd::broadcast(sums_.power(r + k));
      part[k] = simd::load(part_ + 16 * (r + k));
    }
    const Index whole = visible / simd::kLanes * simd::kLanes;
    for (Index i = 0; i < whole; i += simd::kLanes) {
      TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) {
        float* at = logits + k * stride + i;
        const simd::Floats e = exponential<kind>(at, power[k], i, weights);
        simd::store(at, e);
        part[k] += e;
      }
    }
    TERSEKV_HOST_UNROLL for (int k = 0; k < Rows; ++k) simd::store(part_ + 16 * (r + k), part[k]);
    if (whole == padded_dim(entries)) return;
    for (int k = 0; k < Rows; ++k) {
      tail<kind>(r + k, logits + k * stride, whole, visible, entries, weights);
    }
  }
  /// Of one row from entry i on, a whole number of vectors: the last exponentials, if they fill no
  /// vector, and the zeros. Seldom called, and so compiled once for all numbers of rows.
  template <TileWeights::Kind kind>
  [[gnu::noinline]] void tail(Index r, float* row, Index i, Index visible, Index entries,
                              const TileWeights& weights) {
    if (i < visible) {
      const simd::Floats power = simd::broadcast(sums_.power(r));
      const simd::Floats e = exponential<kind>(row + i, power, i, weights);
      const simd::Floats live = simd::first_lanes(e, visible - i, simd::Floats{});
      simd::store(row + i, live);
      simd::store(part_ + 16 * r, simd::load(part_ + 16 * r) + live);
      i += simd::kLanes;
    }
    for (; i < padded_dim(entries); i += simd::kLanes) simd::store(row + i, simd::Floats{});
  }

  AttentionSums sums_;
  float* part_;    ///< [rows, 16]: sums of exponentials, a vector each
  float* factor_;  ///< [rows]
};

}  // namespace tersekv::detail
