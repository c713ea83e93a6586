// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/simd_pairs.hpp"

// Logits of query rows that are numbers of BFloat16, as models in that type have them, against keys
// of BFloat16: a dimension and the next are multiplied at once. The same bits as key_tile's.

namespace tersekv::detail {

/// `num_rows` rows of head_dim floats as pairs, head_dim / 2 to a row, in whole vectors; false if
/// they are none: an odd number of them, or one that is no BFloat16, or so small or large that what
/// add_pairs takes for 0 might be seen.
inline bool make_pairs(const float* rows, Index num_rows, Index head_dim, float* pairs) {
  using Wide = std::uint64_t __attribute__((vector_size(4 * simd::kLanes)));
  using Narrow = std::uint32_t __attribute__((vector_size(2 * simd::kLanes)));
  if (head_dim % 2 != 0) return false;
  const Index numbers = num_rows * head_dim;
  simd::Ints others = {};
  const auto pair_up = [&](simd::Ints bits, Index at) {
    const simd::Ints exponent = bits >> 23 & 0xff;
    const simd::Ints outside = (exponent < 64) | (exponent > 191);
    others |= (bits & 0xffff) | (outside & (bits & 0x7fffffff));
    const auto two = std::bit_cast<Wide>(bits);  // the lower halves of both are 0
    const Narrow pair = __builtin_convertvector(two >> 16 | two >> 32, Narrow);
    std::memcpy(pairs + at / 2, &pair, sizeof pair);
  };
  Index i = 0;
  for (; i + simd::kLanes <= numbers; i += simd::kLanes) pair_up(simd::load_bytes(rows + i), i);
  if (i < numbers) {
    simd::Ints tail = {};
    std::memcpy(&tail, rows + i, static_cast<std::size_t>(numbers - i) * sizeof(float));
    pair_up(tail, i);
  }
  return !simd::any(others);
}

/// As key_block, of two dimensions at a time and for an even number of vectors.
template <int Rows, int Vectors, simd::Ask ask>
inline void pair_block(const BFloat16* keys, const BFloat16* ahead, Index lead, Index page_size,
                       Index head_dim, const float* pairs, float scale, float* out,
                       Index out_stride) {
  for (Index start = 0; start < head_dim; start += kKeyRun) {
    const Index end = std::min(start + kKeyRun, head_dim);
    const BFloat16* asked = row_later(keys, ahead, head_dim, page_size, start + lead);
    simd::Floats sums[std::size_t{Rows}][std::size_t{Vectors}] = {};
    for (Index pair = start / 2; pair < end / 2; ++pair) {
      simd::prefetch<ask, Vectors>(asked);
      simd::prefetch<ask, Vectors>(asked + page_size);
      asked += 2 * page_size;
      simd::Ints k[std::size_t{Vectors}];
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; v += 2) {
        const BFloat16* lower = keys + 2 * pair * page_size + v * simd::kLanes;
        simd::load_pairs(lower, lower + page_size, k + v);
      }
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Ints q = simd::broadcast_bytes(pairs + r * (head_dim / 2) + pair);
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          sums[r][v] = simd::add_pairs(sums[r][v], q, k[v]);
        }
      }
    }
    const simd::Floats unit = simd::broadcast(scale);
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; v += 2) {
        float* logits = out + r * out_stride + v * simd::kLanes;
        simd::Floats two[2] = {sums[r][v], sums[r][v + 1]};
        if (start > 0) {
          two[0] += simd::load(logits);
          two[1] += simd::load(logits + simd::kLanes);
        }
        if (end == head_dim) {
          simd::pairs_in_order(two);
          two[0] *= unit;
          two[1] *= unit;
        }
        simd::store(logits, two[0]);
        simd::store(logits + simd::kLanes, two[1]);
      }
    }
  }
}

/// As key_tile, for rows that are also there as `pairs`, or not, if that is null. A template as
/// byte_key_tile is one.
template <class Key>
inline void pair_tile(const Key* keys, const Ahead<Key>& ahead, const ReadingOrder& order,
                      Index page_size, Index head_dim, Index vectors, const float* rows,
                      const float* pairs, Index num_rows, float scale, float* out,
                      Index out_stride) {
  const Index even = pairs == nullptr ? 0 : vectors / 2 * 2;
  for (Index r = 0; even > 0 && r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      with_ask_of<Rows>(order.memory, ahead, [&]<simd::Ask ask>() {
        const auto block = [&]<int Vectors>(Index v) {
          const Index at = v * simd::kLanes;
          pair_block<Rows, Vectors, ask>(keys + at, (r == 0 ? ahead.rows : keys) + at, order.lead,
                                         page_size, head_dim, pairs + r * head_dim / 2, scale,
                                         out + r * out_stride + at, out_stride);
        };
        Index v = 0;
        for (; v + kKeyVectors <= even; v += kKeyVectors) {
          block.template operator()<kKeyVectors>(v);
        }
        for (; v < even; v += 2) block.template operator()<2>(v);
      });
    });
  }
  if (even == vectors) return;
  const Index at = even * simd::kLanes;
  key_tile(keys + at, ahead.from(at, at * head_dim * Index{sizeof(BFloat16)}), order, page_size,
           head_dim, vectors - even, rows, num_rows, scale, out + at, out_stride);
}

}  // namespace tersekv::detail
