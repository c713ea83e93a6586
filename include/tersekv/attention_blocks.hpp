// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "tersekv/config.hpp"
#include "tersekv/simd.hpp"

// The inner loops of attention: a few query rows against a page's keys or values, as many as the
// register file holds sums for.

namespace tersekv::detail {

/// Rows of sums, and vectors of sums in all, that the register file holds.
inline constexpr int kRowBlock = simd::kLanes == 16 ? 4 : 2;
inline constexpr int kSumBlock = simd::kLanes == 16 ? 16 : 8;

/// Calls f.template operator()<N>() for the N in [1, Max] that equals n.
template <int Max, class F>
inline void with_constant(Index n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, f);
  }
  f.template operator()<Max>();
}

/// Vectors of a page's entries, and of a row of sums, come in multiples of this.
inline constexpr int kLeastRun = simd::kMostLanes / simd::kLanes;

/// Calls f.template operator()<N>(at) for runs of N = Max, Max / 2, ... vectors that cover [0, n),
/// a multiple of kLeastRun.
template <int Max, class F>
inline void for_runs(Index n, F&& f, Index at = 0) {
  for (; at + Max <= n; at += Max) f.template operator()<Max>(at);
  if constexpr (Max > 1 && Max > kLeastRun) for_runs<Max / 2>(n, f, at);
}

/// Dimensions whose products are added up before they join the rest of a logit, for precision.
inline constexpr Index kKeyRun = 32;

/// By how much what is read next is asked for: a page's keys, or its values, if they are few, else
/// half of them, so that it is still in the first-level cache when its turn comes.
inline constexpr Index kFewBytes = 12288, kAskedBytes = 16384;
/// Of `rows` rows of `row_bytes` bytes those that are as much, in whole runs.
constexpr Index asked_rows(Index rows, Index row_bytes) {
  if (rows * row_bytes <= kFewBytes) return rows;
  const Index asked = std::min(rows * row_bytes / 2, kAskedBytes) / row_bytes;
  return std::min(rows, std::max(asked / kKeyRun * kKeyRun, kKeyRun));
}

/// Dimensions by which key_block asks ahead.
template <int Vectors, class Key>
constexpr Index asked_dims(Index head_dim) {
  return asked_rows(head_dim, Vectors * simd::kLanes * Index{sizeof(Key)});
}

/// What is read `dim` dimensions after a page's first: of its keys, or then from `ahead` on.
template <class Key>
const Key* dimension_at(const Key* keys, const Key* ahead, Index page_size, Index head_dim,
                        Index dim) {
  return dim < head_dim ? keys + dim * page_size : ahead + (dim - head_dim) * page_size;
}

/// Of a block of a page's logits: Rows query rows against Vectors * kLanes entries. With Ahead what
/// is read asked_dims later is asked for: of these keys, or then from `ahead` on.
template <int Rows, int Vectors, bool Ahead, class Key>
inline void key_block(const Key* keys, const Key* ahead, Index page_size, Index head_dim,
                      const float* rows, Index row_stride, float scale, float* out,
                      Index out_stride) {
  const Index lead = asked_dims<Vectors, Key>(head_dim);
  for (Index start = 0; start < head_dim; start += kKeyRun) {
    const Index end = std::min(start + kKeyRun, head_dim);
    const Key* asked = dimension_at(keys, ahead, page_size, head_dim, start + lead);
    simd::Floats sums[std::size_t{Rows}][std::size_t{Vectors}] = {};
    const auto add = [&](Index j) {
      if constexpr (Ahead) simd::prefetch<Vectors>(asked + (j - start) * page_size);
      simd::Floats k[std::size_t{Vectors}];
      simd::load_spread<Vectors>(keys + j * page_size, k);
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Floats q = simd::broadcast(rows[r * row_stride + j]);
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          sums[r][v] = simd::keep_order(sums[r][v] + q * k[v]);
        }
      }
    };
    Index j = start;
    if constexpr (std::is_same_v<Key, BFloat16>) {  // as simd::add_pairs does
      for (; j + 2 <= end; j += 2) {
        add(j + 1);
        add(j);
      }
    }
    for (; j < end; ++j) add(j);
    // A sum before a product: fused or not, a product before a sum would round in two ways, and a
    // row's logits not be the same bits in every block.
    const simd::Floats unit = simd::broadcast(end == head_dim ? scale : 1.0f);
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      simd::in_order<Vectors, Key>(sums[r]);
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
        float* logits = out + r * out_stride + v * simd::kLanes;
        const simd::Floats so_far = start == 0 ? simd::Floats{} : simd::load(logits);
        simd::store(logits, (so_far + sums[r][v]) * unit);
      }
    }
  }
}

/// Query rows from which what comes next is asked for in between. Where memory is the limit it
/// disturbs the prefetching of AMD's processors up to Zen 4, and hides a wait that others' leaves.
inline constexpr int kRowsThatAsk = simd::kZen == 4 ? 4 : 1;

/// out[r, i] = scale * <rows[r], key i> for the first `vectors` * kLanes entries at `keys`, of a
/// page of `page_size`. `ahead` is what will be read next, as much of it.
template <class Key>
void key_tile(const Key* keys, const Key* ahead, Index page_size, Index head_dim, Index vectors,
              const float* rows, Index num_rows, float scale, float* out, Index out_stride) {
  constexpr int most = kSumBlock / kRowBlock;
  for (Index r = 0; r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      for_runs<most>(vectors, [&]<int Vectors>(Index v) {
        const Index at = v * simd::kLanes;
        key_block<Rows, Vectors, (Rows >= kRowsThatAsk)>(
            keys + at, (r == 0 ? ahead : keys) + at, page_size, head_dim, rows + r * head_dim,
            head_dim, scale, out + r * out_stride + at, out_stride);
      });
    });
  }
}

/// sums[r, d] = factors[r] * sums[r, d] + sum_i weights[r, i] * values[i, d] over `entries`
/// entries, for Rows rows and Vectors * kLanes columns; null factors are 1. Of each entry, `rest`
/// more bytes are read: where nothing is asked for ahead, so that memory is read in order, else 0.
template <int Rows, int Vectors, bool Ahead, class Value>
inline void value_block(const Value* values, const Value* ahead, Index head_dim, Index entries,
                        Index rest, const float* weights, Index weight_stride, const float* factors,
                        float* sums, Index sum_stride) {
  simd::Floats total[std::size_t{Rows}][std::size_t{Vectors}] = {};
  for (Index i = 0; i < entries; ++i) {
    if constexpr (Ahead) simd::prefetch<Vectors>(ahead + i * head_dim);
    simd::Floats row[std::size_t{Vectors}];
    simd::load_spread<Vectors>(values + i * head_dim, row);
    simd::touch(values + i * head_dim + Vectors * simd::kLanes, rest);
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      const simd::Floats w = simd::broadcast(weights[r * weight_stride + i]);
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) total[r][v] += w * row[v];
    }
  }
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    const float factor = factors == nullptr ? 1.0f : factors[r];
    simd::in_order<Vectors, Value>(total[r]);
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      float* at = sums + r * sum_stride + v * simd::kLanes;
      simd::store(at, simd::load(at) * factor + total[r][v]);
    }
  }
}

/// The same for `num_rows` rows and all columns, in whole vectors: sums has room for them.
template <class Value>
void value_tile(const Value* values, const Value* ahead, Index head_dim, Index entries,
                const float* weights, Index num_rows, Index weight_stride, const float* factors,
                float* sums, Index sum_stride) {
  const Index vectors = padded_dim(head_dim) / simd::kLanes;
  const Index chunk = asked_rows(entries, head_dim * Index{sizeof(Value)});
  for (Index r = 0; r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      constexpr int most = Rows > 2 ? 4 : 8;
      for (Index first = 0; first < entries; first += chunk) {
        const Value *here = values + first * head_dim, *asked = here;
        if (r == 0) asked = first + chunk < entries ? here + chunk * head_dim : ahead;
        for_runs<std::min(most, kSumBlock / Rows)>(vectors, [&]<int Vectors>(Index v) {
          const Index at = v * simd::kLanes, after = head_dim - at - Vectors * simd::kLanes;
          const Index rest =
              Rows < kRowsThatAsk && r == 0 && v == 0 ? after * Index{sizeof(Value)} : 0;
          value_block<Rows, Vectors, (Rows >= kRowsThatAsk)>(
              here + at, asked + at, head_dim, std::min(chunk, entries - first), rest,
              weights + r * weight_stride + first, weight_stride,
              first > 0 || factors == nullptr ? nullptr : factors + r, sums + r * sum_stride + at,
              sum_stride);
        });
      }
    });
  }
}

}  // namespace tersekv::detail
