// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

namespace detail {

/// Entries per flush of the output accumulators: float partial sums stay short, whatever the page
/// size, so a million entries lose no more precision than a few thousand do.
inline constexpr Index kFlushEntries = 256;

/// Calls f.template operator()<N>() for the N in [1, Max] that equals n.
template <int Max, class F>
inline void with_constant(Index n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, f);
  }
  f.template operator()<Max>();
}

/// Dimensions whose products are added up before they join the rest of a logit, for precision.
inline constexpr Index kKeyRun = 32;

/// Rows of one block of a page's logits: Rows query rows against Vectors * kLanes entries. `ahead`
/// is where the same block of the next page lies: pages are scattered, so the processor's own
/// prefetching stops at the end of each.
template <int Rows, int Vectors, class Key>
inline void key_block(const Key* keys, const Key* ahead, Index page_size, Index head_dim,
                      const float* rows, Index row_stride, float scale, float* out,
                      Index out_stride) {
  for (Index start = 0; start < head_dim; start += kKeyRun) {
    const Index end = std::min(start + kKeyRun, head_dim);
    simd::Floats sums[std::size_t{Rows}][std::size_t{Vectors}] = {};
    for (Index j = start; j < end; ++j) {
      simd::prefetch<Vectors>(ahead + j * page_size);
      simd::Floats k[std::size_t{Vectors}];
      for (int v = 0; v < Vectors; ++v) k[v] = simd::load(keys + j * page_size + v * simd::kLanes);
      for (int r = 0; r < Rows; ++r) {
        const simd::Floats q = simd::broadcast(rows[r * row_stride + j]);
        for (int v = 0; v < Vectors; ++v) sums[r][v] += q * k[v];
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < Vectors; ++v) {
        float* logits = out + r * out_stride + v * simd::kLanes;
        const simd::Floats so_far = start == 0 ? simd::Floats{} : simd::load(logits);
        simd::store(logits, so_far + sums[r][v] * scale);
      }
    }
  }
}

/// sums[r, d] += sum_i weights[r, i] * values[i, d] over the entries of one page, for Rows rows and
/// Vectors * kLanes columns.
template <int Rows, int Vectors, class Value>
inline void value_block(const Value* values, const Value* ahead, Index head_dim, Index entries,
                        const float* weights, Index weight_stride, float* sums, Index sum_stride) {
  simd::Floats total[std::size_t{Rows}][std::size_t{Vectors}];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      total[r][v] = simd::load(sums + r * sum_stride + v * simd::kLanes);
    }
  }
  for (Index i = 0; i < entries; ++i) {
    simd::prefetch<Vectors>(ahead + i * head_dim);
    simd::Floats row[std::size_t{Vectors}];
    for (int v = 0; v < Vectors; ++v) row[v] = simd::load(values + i * head_dim + v * simd::kLanes);
    for (int r = 0; r < Rows; ++r) {
      const simd::Floats w = simd::broadcast(weights[r * weight_stride + i]);
      for (int v = 0; v < Vectors; ++v) total[r][v] += w * row[v];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      simd::store(sums + r * sum_stride + v * simd::kLanes, total[r][v]);
    }
  }
}

// Rows of accumulators times vectors per row that the register file holds.
inline constexpr int kRowBlock = simd::kLanes == 16 ? 4 : 2;
inline constexpr int kVectorBlock = 4;

}  // namespace detail

/// Room for `n` floats, rounded up to whole vectors: the widest ones, so that a program of parts
/// compiled for different machines agrees about it.
inline Index padded_dim(Index n) { return (n + 15) / 16 * 16; }

/// out[r, i] = scale * <rows[r], key of slot i> for slots [first, last), first on a page boundary;
/// what lies between `last` and the end of its page is written too (arbitrary, finite). One pass
/// over the keys for every block of rows that fits the registers.
template <class Head>
void key_products(const Head& head, Index first, Index last, const float* rows, Index num_rows,
                  Index row_stride, float scale, float* out, Index out_stride) {
  using namespace detail;
  const Index page_size = head.page_size();
  const Index vectors = page_size / simd::kLanes;
  for (Index start = first; start < last; start += page_size) {
    const auto* keys = head.key_page(start / page_size);
    const Index next = start + page_size < last ? start / page_size + 1 : start / page_size;
    const auto* ahead = head.key_page(next);
    for (Index r = 0; r < num_rows; r += kRowBlock) {
      for (Index v = 0; v < vectors; v += kVectorBlock) {
        with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
          with_constant<kVectorBlock>(
              std::min<Index>(kVectorBlock, vectors - v), [&]<int Vectors>() {
                key_block<Rows, Vectors>(
                    keys + v * simd::kLanes, ahead + v * simd::kLanes, page_size, head.head_dim(),
                    rows + r * row_stride, row_stride, scale,
                    out + r * out_stride + start + v * simd::kLanes, out_stride);
              });
        });
      }
    }
  }
}

/// Buffers of one worker for `attend_row`; `stride` is the longest head, rounded up to whole pages.
struct AttentionBuffers {
  float* logits = nullptr;  ///< [group_size, stride]
  float* bias = nullptr;    ///< [page_size]
  float* sums = nullptr;    ///< [2 * group_size, padded_dim(head_dim)]
  Index stride = 0;
};

/// One query token of one KV head's group against the head's first `visible` slots.
struct RowRequest {
  const float* query = nullptr;  ///< [group_size, head_dim]
  Index visible = 0;
  float alpha = 0.0f;  ///< compensation; used only where the cache has weights
  GroupReduce reduce = GroupReduce::sum;
  float* out = nullptr;        ///< [group_size, head_dim], or null: the values are not read
  float* lse = nullptr;        ///< [group_size]
  float* attention = nullptr;  ///< [stride] or null: attention reduced over the group
  float* logits = nullptr;     ///< [group_size, stride] or null: logits without the bias
};

/// Compensated softmax attention of one row:
///
///   l_gi = scale <q_g, k_i>,  a_gi = softmax_i(l_gi + alpha ln w_i),  o_g = sum_i a_gi v_i
///
/// with the natural-log normaliser lse_g = ln sum_i exp(l_gi + alpha ln w_i) and
/// A_i = reduce_g a_gi. One pass over the keys, one over the values; O(group visible head_dim).
/// Accumulation in float with double normalisers; the maximum is subtracted first, so logits of any
/// size are safe. Precondition: visible > 0.
template <class Head>
void attend_row(const Head& head, const RowRequest& request, const AttentionBuffers& buffers) {
  using namespace detail;
  const Index group = head.shape().group_size, dim = head.head_dim();
  const Index visible = request.visible, page = head.page_size();
  const Index padded = padded_dim(visible), stride = buffers.stride;
  key_products(head, 0, visible, request.query, group, dim, head.shape().scale, buffers.logits,
               stride);
  if (request.logits != nullptr) {
    for (Index g = 0; g < group; ++g) {
      std::copy_n(buffers.logits + g * stride, visible, request.logits + g * stride);
    }
  }
  if (request.alpha != 0.0f) {
    for (Index start = 0; start < visible; start += page) {
      const float* weights = head.weight_page(start / page);
      const Index entries = std::min(page, visible - start);
      int merged = 0;  // most pages hold tokens as they came
      for (Index i = 0; i < entries; ++i) merged |= weights[i] != 1.0f ? 1 : 0;
      if (merged == 0) continue;
      for (Index i = 0; i < entries; ++i) buffers.bias[i] = request.alpha * log_of(weights[i]);
      for (Index g = 0; g < group; ++g) {
        float* row = buffers.logits + g * stride + start;
        for (Index i = 0; i < entries; ++i) row[i] += buffers.bias[i];
      }
    }
  }

  for (Index g = 0; g < group; ++g) {
    float* row = buffers.logits + g * stride;
    // The vectors' tail repeats a live logit, so that it changes no maximum and overflows nothing.
    for (Index i = visible; i < padded; ++i) row[i] = row[0];
    simd::Floats highest = simd::load(row);
    for (Index i = simd::kLanes; i < padded; i += simd::kLanes) {
      highest = simd::max(highest, simd::load(row + i));
    }
    const float max = simd::max(highest);
    for (Index i = 0; i < padded; i += simd::kLanes) {
      simd::store(row + i, simd::exp(simd::load(row + i) - max));
    }
    for (Index i = visible; i < padded; ++i) row[i] = 0.0f;
    double sum = 0;
    for (Index start = 0; start < padded; start += page) {
      simd::Floats part = {};
      for (Index i = start; i < std::min(start + page, padded); i += simd::kLanes) {
        part += simd::load(row + i);
      }
      sum += static_cast<double>(simd::sum(part));
    }
    request.lse[g] = max + static_cast<float>(std::log(sum));
    const float inverse = static_cast<float>(1.0 / sum);
    for (Index i = 0; i < padded; i += simd::kLanes) {
      simd::store(row + i, simd::load(row + i) * inverse);
    }
  }

  if (request.attention != nullptr) {
    std::copy_n(buffers.logits, padded, request.attention);
    for (Index g = 1; g < group; ++g) {
      const float* row = buffers.logits + g * stride;
      for (Index i = 0; i < padded; i += simd::kLanes) {
        const simd::Floats so_far = simd::load(request.attention + i), a = simd::load(row + i);
        simd::store(request.attention + i,
                    request.reduce == GroupReduce::max ? simd::max(so_far, a) : so_far + a);
      }
    }
    if (request.reduce == GroupReduce::mean) {
      for (Index i = 0; i < visible; ++i) request.attention[i] /= static_cast<float>(group);
    }
  }

  if (request.out == nullptr) return;
  const Index sum_stride = padded_dim(dim), vectors = sum_stride / simd::kLanes;
  float* total = buffers.sums;
  float* block = buffers.sums + group * sum_stride;
  std::fill_n(total, 2 * group * sum_stride, 0.0f);
  const Index run = std::min(page, kFlushEntries);
  for (Index start = 0; start < visible; start += run) {
    const Index entries = std::min(run, visible - start);
    const auto* values = head.value_page(start / page) + start % page * dim;
    const Index next = start + run < visible ? start + run : start;
    const auto* ahead = head.value_page(next / page) + next % page * dim;
    for (Index g = 0; g < group; g += kRowBlock) {
      for (Index v = 0; v < vectors; v += kVectorBlock) {
        with_constant<kRowBlock>(std::min<Index>(kRowBlock, group - g), [&]<int Rows>() {
          with_constant<kVectorBlock>(
              std::min<Index>(kVectorBlock, vectors - v), [&]<int Vectors>() {
                value_block<Rows, Vectors>(values + v * simd::kLanes, ahead + v * simd::kLanes, dim,
                                           entries, buffers.logits + g * stride + start, stride,
                                           block + g * sum_stride + v * simd::kLanes, sum_stride);
              });
        });
      }
    }
    const bool last = start + run >= visible;
    if (last || (start + run) % kFlushEntries == 0) {
      for (Index i = 0; i < group * sum_stride; ++i) {
        total[i] += block[i];
        block[i] = 0.0f;
      }
    }
  }
  for (Index g = 0; g < group; ++g) {
    std::copy_n(total + g * sum_stride, dim, request.out + g * dim);
  }
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
