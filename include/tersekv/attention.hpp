// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_bytes.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

/// Room for `n` floats, rounded up to whole vectors: the widest ones, so that a program of parts
/// compiled for different machines agrees about it.
inline Index padded_dim(Index n) { return (n + 15) / 16 * 16; }

/// Query rows that are worked on at a time, but at least those of one token.
inline constexpr Index kRowsAtOnce = 16;
inline Index tokens_at_once(Index group) { return std::max<Index>(1, kRowsAtOnce / group); }

/// Entries between two flushes of the output's sums: float partial sums stay short, whatever the
/// page size, so a million entries lose no more precision than a few thousand do.
inline constexpr Index kMostTile = 256;
inline Index tile_entries(Index page_size) { return std::min(page_size, kMostTile); }

/// Buffers of one worker for `attend`, for `rows` = tokens_at_once * group_size query rows and
/// heads of at most `stride` entries, whole pages.
struct AttentionBuffers {
  float* tile = nullptr;    ///< [rows, tile_entries]
  float* kept = nullptr;    ///< [group_size, stride], where attention per entry is wanted
  float* powers = nullptr;  ///< [tiles of stride, group_size], in whole vectors, likewise
  float* bias = nullptr;    ///< [tile_entries]
  float* sums = nullptr;    ///< [2, rows, padded_dim(head_dim)]
  float* state = nullptr;   ///< [4, rows]
  // For keys and values of one byte:
  float* byte_queries = nullptr;  ///< [rows, padded_dim(head_dim)]
  float* byte_units = nullptr;    ///< [rows, ByteRows::kUnits]
  float* share_units = nullptr;   ///< [rows]
  Index stride = 0;
};

/// Query rows of a few tokens of one KV head's group against the head's entries. The last token
/// sees the first `visible` slots, the one before it one less, and so on.
struct AttentionRequest {
  const float* query = nullptr;  ///< [tokens, group_size, head_dim]
  Index tokens = 1;              ///< up to tokens_at_once(group_size)
  Index visible = 0;
  float alpha = 0.0f;  ///< compensation; used only where the cache has weights
  GroupReduce reduce = GroupReduce::sum;
  float* out = nullptr;        ///< [tokens, group_size, head_dim], or null: the values are not read
  float* lse = nullptr;        ///< [tokens, group_size]
  float* attention = nullptr;  ///< [visible] or null: reduced over the group; of one token
  float* logits = nullptr;     ///< [group_size, stride] or null: without the bias; of one token
};

namespace detail {

/// The tiles of one request, in the order of memory: a page's keys, its values, and its columns, so
/// that the processor's own prefetching, which stops at the first gap, goes on for as long as pages
/// are neighbours. A running softmax: sums and normalisers are relative to a power of two that is
/// about the highest exponential so far. So rescaling them is exact, and equal logits get the same
/// attention to the bit, wherever they lie.
template <class Head>
class AttentionPass {
  using Key = typename Head::Key;
  using Value = typename Head::Value;

 public:
  AttentionPass(const Head& head, const AttentionRequest& request, const AttentionBuffers& buffers)
      : head_(head),
        request_(request),
        buffers_(buffers),
        group_(head.shape().group_size),
        rows_(request.tokens * group_),
        dim_(head.head_dim()),
        sum_stride_(padded_dim(dim_)),
        tile_(tile_entries(head.page_size())),
        kept_(request.attention != nullptr),
        power_(buffers.state),
        factor_(buffers.state + rows_),
        sum_(buffers.state + 2 * rows_) {
    if (request.out != nullptr) std::fill_n(buffers.sums, 2 * rows_ * sum_stride_, 0.0f);
    if constexpr (Codec<Key>::scaled) {
      byte_queries_ = {buffers.byte_queries, buffers.byte_units, sum_stride_};
      for (Index r = 0; r < rows_; ++r) {
        make_byte_row(request.query + r * dim_, dim_, head.shape().scale,
                      buffers.byte_queries + r * sum_stride_,
                      buffers.byte_units + r * ByteRows::kUnits);
      }
    }
  }

  void run() {
    for (Index start = 0, tile = 0; start < request_.visible; start += tile_, ++tile) {
      const Index entries = std::min(tile_, request_.visible - start);
      // Rows of tokens that came before this tile's entries see none of it.
      const Index blind = std::max<Index>(start + request_.tokens - request_.visible, 0) * group_;
      logits(start, entries, blind);
      std::fill_n(factor_, blind, 1.0f);
      for (Index r = blind; r < rows_; ++r)
        softmax(r, start, tile, std::min(entries, seen(r) - start));
      if (request_.out != nullptr) values(start, entries, blind);
    }
    for (Index r = 0; r < rows_; ++r) finish(r);
    if (kept_) reduce();
  }

 private:
  Index seen(Index row) const { return request_.visible - (request_.tokens - 1 - row / group_); }
  /// Logits of row r in the tile that starts at `start`, and the rows' stride.
  float* row_of(Index r, Index start) const {
    return kept_ ? buffers_.kept + r * buffers_.stride + start : buffers_.tile + r * tile_;
  }
  Index row_stride() const { return kept_ ? buffers_.stride : tile_; }
  double sum_of(Index r) const {
    double sum = 0;
    std::memcpy(&sum, sum_ + 2 * r, sizeof sum);
    return sum;
  }
  void set_sum(Index r, double sum) const { std::memcpy(sum_ + 2 * r, &sum, sizeof sum); }

  void logits(Index start, Index entries, Index blind) {
    const Index page = head_.page_size(), vectors = padded_dim(entries) / simd::kLanes;
    const Index index = start / page, first = start % page * Codec<Key>::pack;
    const auto* keys = head_.key_page(index) + first;
    const auto* ahead = request_.out == nullptr
                            ? keys
                            : reinterpret_cast<const Key*>(head_.value_page(index)) + first;
    float* out = row_of(blind, start);
    if constexpr (Codec<Key>::scaled) {
      byte_key_tile(keys, ahead, page, dim_, vectors, byte_queries_.from(blind), rows_ - blind,
                    head_.key_scale_page(index) + start % page, false, out, row_stride());
    } else {
      key_tile(keys, ahead, page, dim_, vectors, request_.query + blind * dim_, rows_ - blind,
               head_.shape().scale, out, row_stride());
    }
    if (request_.logits != nullptr) {
      for (Index g = 0; g < group_; ++g) {
        std::copy_n(row_of(g, start), entries, request_.logits + g * buffers_.stride + start);
      }
    }
    if (request_.alpha == 0.0f || !head_.has_weights()) return;
    const float* weights = head_.weight_page(start / page) + start % page;
    int merged = 0;  // most pages hold tokens as they came
    for (Index i = 0; i < entries; ++i) merged |= weights[i] != 1.0f ? 1 : 0;
    if (merged == 0) return;
    // Locals: what a store to `bias` might change would have to be read again each time.
    const float alpha = request_.alpha;
    float* bias = buffers_.bias;
    for (Index i = 0; i < entries; ++i) bias[i] = alpha * log_of(weights[i]);
    for (Index r = blind; r < rows_; ++r) {
      float* row = row_of(r, start);
      for (Index i = 0; i < entries; ++i) row[i] += bias[i];
    }
  }

  /// Row r, which sees `visible` of the tile's entries: exponentials in place of logits, zeros
  /// behind them.
  void softmax(Index r, Index start, Index tile, Index visible) {
    float* row = row_of(r, start);
    const Index padded = padded_dim(visible);
    // The vectors' tail repeats a live logit, so that it changes no maximum and overflows nothing.
    for (Index i = visible; i < padded; ++i) row[i] = row[0];
    simd::Floats highest = simd::load(row);
    for (Index i = simd::kLanes; i < padded; i += simd::kLanes) {
      highest = simd::max(highest, simd::load(row + i));
    }
    const float of_tile = simd::power_of(simd::broadcast(simd::max(highest)))[0];
    const bool higher = tile == 0 || of_tile > power_[r];
    factor_[r] = higher && tile > 0 ? simd::exp2(simd::broadcast(power_[r] - of_tile))[0] : 1.0f;
    if (higher) power_[r] = of_tile;
    if (kept_) buffers_.powers[tile * group_ + r] = power_[r];
    const simd::Floats power = simd::broadcast(power_[r]);
    simd::Floats part = {};
    for (Index i = 0; i + simd::kLanes <= visible; i += simd::kLanes) {
      const simd::Floats e = simd::exp_over(simd::load(row + i), power);
      simd::store(row + i, e);
      part += e;
    }
    const Index last = visible / simd::kLanes * simd::kLanes;
    if (last < visible) simd::store(row + last, simd::exp_over(simd::load(row + last), power));
    std::fill(row + visible, row + tile_, 0.0f);
    if (last < visible) part += simd::load(row + last);
    const double sum = static_cast<double>(simd::sum(part));
    set_sum(r, tile == 0 ? sum : sum_of(r) * static_cast<double>(factor_[r]) + sum);
  }

  void values(Index start, Index entries, Index blind) {
    const Index page = head_.page_size(), index = start / page;
    const bool more = start / page < (request_.visible - 1) / page;
    const auto* values = head_.value_page(index) + start % page * dim_;
    const auto* ahead = values;
    if (more) {
      ahead = reinterpret_cast<const Value*>(head_.key_page(index + 1)) + start % page * dim_;
    }
    float* sums = buffers_.sums + blind * sum_stride_;
    if constexpr (Codec<Value>::scaled) {
      make_byte_shares(head_.value_scale_page(index) + start % page, start, entries, blind);
      byte_value_tile(values, ahead, dim_, entries, buffers_.tile + blind * tile_, rows_ - blind,
                      tile_, buffers_.share_units + blind, factor_ + blind, sums, sum_stride_);
    } else {
      value_tile(values, ahead, dim_, entries, row_of(blind, start), rows_ - blind, row_stride(),
                 factor_ + blind, sums, sum_stride_);
    }
    if (more && (start + tile_) % page == 0) head_.read_on(index);
    const bool flush = (start + tile_) % kMostTile == 0 || start + tile_ >= request_.visible;
    for (Index r = 0; r < rows_; ++r) {
      if (factor_[r] == 1.0f && !flush) continue;
      float* part = buffers_.sums + r * sum_stride_;
      float* total = part + rows_ * sum_stride_;
      for (Index j = 0; j < sum_stride_; ++j) {
        total[j] = total[j] * factor_[r] + (flush ? part[j] : 0.0f);
      }
      if (flush) std::fill_n(part, sum_stride_, 0.0f);
    }
  }

  /// Exponentials times the scales of their values, in digits, into the tile: those that are kept
  /// stay.
  void make_byte_shares(const float* scales, Index start, Index entries, Index blind) {
    const Index padded = padded_dim(entries);
    for (Index r = blind; r < rows_; ++r) {
      const float* row = row_of(r, start);
      float* shares = buffers_.tile + r * tile_;
      simd::Floats most = {};
      Index i = 0;
      for (; i + simd::kLanes <= entries; i += simd::kLanes) {
        const simd::Floats share = simd::load(row + i) * simd::load(scales + i);
        simd::store(shares + i, share);
        most = simd::max(most, share);
      }
      if (i < padded) {  // scales of dead slots may be anything
        for (Index j = i; j < entries; ++j) shares[j] = row[j] * scales[j];
        std::fill(shares + entries, shares + padded, 0.0f);
        for (; i < padded; i += simd::kLanes) most = simd::max(most, simd::load(shares + i));
      }
      buffers_.share_units[r] = to_unsigned_digits(shares, padded, simd::max(most), shares);
    }
  }

  void finish(Index r) {
    const double sum = sum_of(r);
    request_.lse[r] =
        static_cast<float>(0.693147180559945309 * static_cast<double>(power_[r]) + std::log(sum));
    const float inverse = static_cast<float>(1.0 / sum);
    factor_[r] = inverse;
    if (request_.out == nullptr) return;
    const float* sums = buffers_.sums + (rows_ + r) * sum_stride_;
    for (Index j = 0; j < dim_; ++j) request_.out[r * dim_ + j] = sums[j] * inverse;
  }

  /// Attention per entry, out of exponentials relative to the powers of their tiles.
  void reduce() {
    const Index tiles = (request_.visible + tile_ - 1) / tile_;
    for (Index t = 0; t < tiles; ++t) {
      float* of_tile = buffers_.powers + t * group_;
      for (Index g = 0; g < group_; ++g) of_tile[g] -= power_[g];
    }
    for (Index i = 0; i < padded_dim(tiles * group_); i += simd::kLanes) {
      simd::store(buffers_.powers + i, simd::exp2(simd::load(buffers_.powers + i)));
    }
    for (Index t = 0; t < tiles; ++t) {
      const Index last = std::min((t + 1) * tile_, request_.visible);
      for (Index i = t * tile_; i < last; i += simd::kLanes) {
        simd::Floats all = share(t, 0, i);
        for (Index g = 1; g < group_; ++g) {
          const simd::Floats one = share(t, g, i);
          all = request_.reduce == GroupReduce::max ? simd::max(all, one) : all + one;
        }
        if (request_.reduce == GroupReduce::mean) all /= static_cast<float>(group_);
        const Index wanted = std::min<Index>(simd::kLanes, last - i);
        if (wanted == simd::kLanes) {
          simd::store(request_.attention + i, all);
        } else {
          std::memcpy(request_.attention + i, &all,
                      static_cast<std::size_t>(wanted) * sizeof(float));
        }
      }
    }
  }
  /// Attention of row g to the entries from `i` on, of tile t.
  simd::Floats share(Index t, Index g, Index i) const {
    const simd::Floats least = simd::broadcast(0x1p-124f);  // all that is lower is equal
    const simd::Floats kept = simd::load(buffers_.kept + g * buffers_.stride + i);
    return simd::max(kept * buffers_.powers[t * group_ + g], least) * factor_[g];
  }

  const Head& head_;
  const AttentionRequest& request_;
  const AttentionBuffers& buffers_;
  Index group_, rows_, dim_, sum_stride_, tile_;
  bool kept_;
  // Of every row: the logarithm of the power of two that sums are relative to; what the tile's does
  // to the sums so far, and in the end 1 / sum; the sum of exponentials, in double.
  float *power_, *factor_, *sum_;
  ByteRows byte_queries_;
};

}  // namespace detail

/// Compensated softmax attention of the rows of a few tokens:
///
///   l_gi = scale <q_g, k_i>,  a_gi = softmax_i(l_gi + alpha ln w_i),  o_g = sum_i a_gi v_i
///
/// with the natural-log normaliser lse_g = ln sum_i exp(l_gi + alpha ln w_i) and
/// A_i = reduce_g a_gi. One pass over keys and values; O(tokens group visible head_dim).
/// Accumulation in float with double normalisers, relative to a power of two near the highest
/// exponential so far, so logits of any size are safe. Precondition: visible >= tokens.
template <class Head>
void attend(const Head& head, const AttentionRequest& request, const AttentionBuffers& buffers) {
  detail::AttentionPass<Head>(head, request, buffers).run();
}

/// Joins the attention of two disjoint sets of entries, exactly: (out_a, lse_a) becomes that of
/// their union. Log-weights are inside lse, so compressed and exact parts mix. Both lse
/// are finite. O(head_dim).
TERSEKV_HD inline void merge_states(float* out_a, float& lse_a, const float* out_b, float lse_b,
                                    Index head_dim) {
  const float max = lse_a > lse_b ? lse_a : lse_b;
  const float mass_a = std::exp(lse_a - max), mass_b = std::exp(lse_b - max);
  const float total = mass_a + mass_b;
  for (Index j = 0; j < head_dim; ++j) {
    out_a[j] = (mass_a * out_a[j] + mass_b * out_b[j]) / total;
  }
  lse_a = max + std::log(total);
}

}  // namespace tersekv
