// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_bytes.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/head_view.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/simd_spread.hpp"

namespace tersekv {

namespace detail {

/// The slots [first, last) page by page, the last page first, as it is the one most likely to be in
/// a cache near: attention has just read all of them, in the order of memory. Each rounded up to
/// whole runs of Run vectors (or pages, where they are shorter):
/// body.template operator()<Vectors>(page, the page that comes next, the first entry in it, its
/// slot).
template <int Run, class Head, class F>
void for_product_runs(const Head& head, Index first, Index last, F&& body) {
  const Index page_size = head.page_size(), final_page = head.page_index(first);
  for (Index stop = last; stop > first;) {
    const Index page = head.page_index(stop - 1), next = std::max(page - 1, final_page);
    const Index skip = page == final_page ? head.in_page(first) : 0;
    const Index entries = head.in_page(stop - 1) + 1 - skip, start = stop - entries;
    const Index wanted = (entries + simd::kLanes - 1) / simd::kLanes;
    const Index vectors =
        std::min((page_size - skip) / simd::kLanes, (wanted + Run - 1) / Run * Run);
    for_runs<Run>(vectors, [&]<int Vectors>(Index v) {
      const Index at = v * simd::kLanes;
      body.template operator()<Vectors>(page, next, skip + at, start + at);
    });
    stop = start;
  }
}

/// Calls f.template operator()<ask>() with how the pages of slots up to `last` are asked for: what
/// attention has just read of a shorter head is in the second-level cache, and a Skylake is better
/// asked near wherever it is. (Four lanes: see ask_of.)
template <class F>
void with_ask_for_keys(Index last, F&& f) {
  constexpr bool far = simd::kAsksFar && !simd::kSkylake;
  constexpr simd::Ask memory = far ? simd::Ask::far : simd::Ask::near;
  with_ask<memory, simd::kLanes == 4 ? memory : simd::Ask::near>(last >= kMemoryEntries, f);
}

/// As `key_products`, over the keys of one byte, whose products with another are exact: its digits
/// hold all of it. Long keys are worked through in parts, so that their digits fit the stack, and
/// rounded where a part lacks the largest element.
template <int MostRows, class Head>
void byte_key_products(const Head& head, Index first, Index last, const float* vectors, float scale,
                       float* out, Index rows, Index stride) {
  constexpr Index most = 256;
  alignas(64) float digits[std::size_t{MostRows * most}];
  float units[std::size_t{MostRows * ByteRows::kUnits}];
  const Index page_size = head.page_size(), dim = head.head_dim();
  for (Index from = 0; from < dim; from += most) {
    const Index dims = std::min(most, dim - from);
    for (Index r = 0; r < rows; ++r) {
      make_byte_row(vectors + r * dim + from, dims, scale, digits + r * most,
                    units + r * ByteRows::kUnits);
    }
    with_ask_for_keys(last, [&]<simd::Ask ask>() {
      for_product_runs<kByteVectors<1>>(
          head, first, last, [&]<int Vectors>(Index page, Index next, Index at, Index slot) {
            const Index skip = from * page_size + 4 * at;
            const Int8* const keys = head.key_page(page) + skip;
            const Ahead<Int8> ahead{head.key_page(next) + skip, AskedLines()};
            with_constant<MostRows>(rows, [&]<int Rows>() {
              byte_key_block<Rows, Vectors, ask>(
                  keys, ahead, page_size, dims, {digits, units, most},
                  head.key_scale_page(page) + at, from > 0, out + slot, stride);
            });
          });
    });
  }
}

/// How many dimensions before a page's keys, `row_bytes` bytes a dimension, are read they are asked
/// for: far, a page; else so many that they, of a page that is one run, are still in the
/// first-level cache then.
template <simd::Ask ask>
Index product_lead(Index head_dim, Index row_bytes) {
  if constexpr (ask == simd::Ask::far) return head_dim;
  const Index lead = kAskedBytes / row_bytes / (2 * kKeyRun) * (2 * kKeyRun);
  return std::min(head_dim, std::max(lead, 2 * kKeyRun));
}

/// out[r * stride + i] = scale * <rows[r], key of entry i> for Vectors * kLanes entries of a page,
/// two runs of dimensions of one row at a time, or one of several, whose sums need not wait for
/// each other. What is read `lead` dimensions later may be asked for: of these keys, or then from
/// `ahead` on.
template <int Rows, int Vectors, simd::Ask ask, class Key>
void product_block(const Key* keys, const Key* ahead, Index lead, Index page_size, Index head_dim,
                   const float* rows, float scale, float* out, Index stride) {
  constexpr int runs = Rows == 1 ? 2 : 1;
  simd::Floats total[std::size_t{Rows}][std::size_t{Vectors}] = {};
  for (Index start = 0; start < head_dim; start += runs * kKeyRun) {
    simd::Floats sums[std::size_t{runs}][std::size_t{Rows}][std::size_t{Vectors}] = {};
    const Key* asked[std::size_t{runs}];
    for (int run = 0; run < runs; ++run) {
      asked[run] = row_later(keys, ahead, head_dim, page_size, start + run * kKeyRun + lead);
    }
    const auto add = [&](int run, Index i) __attribute__((always_inline)) {
      const Index j = start + run * kKeyRun + i;
      simd::prefetch<ask, Vectors>(asked[run] + i * page_size);
      simd::Floats k[std::size_t{Vectors}];
      simd::load_spread<Vectors>(keys + j * page_size, k);
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Floats element = simd::broadcast(rows[r * head_dim + j]);
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          sums[run][r][v] = simd::keep_order(sums[run][r][v] + element * k[v]);
        }
      }
    };
    const Index first = std::min(kKeyRun, head_dim - start);
    const Index second = runs == 1 ? 0 : std::clamp<Index>(head_dim - start - kKeyRun, 0, kKeyRun);
    for (Index i = 0; i < second; ++i) {
      add(0, i);
      add(runs - 1, i);
    }
    for (Index i = second; i < first; ++i) add(0, i);
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
        total[r][v] = simd::keep_order(total[r][v] + sums[0][r][v]);
        if constexpr (runs > 1) total[r][v] = simd::keep_order(total[r][v] + sums[1][r][v]);
      }
    }
  }
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    simd::in_order<Vectors, Key>(total[r]);
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      simd::store(out + r * stride + v * simd::kLanes, total[r][v] * scale);
    }
  }
}

}  // namespace detail

/// out[r * stride + i] = scale * <vectors[r], key of slot i> for slots [first, last), first that of
/// a page, and `rows` vectors of head_dim numbers each, at most MostRows; up to 63 numbers of a row
/// behind `last`, in the same page, are written too (arbitrary). A product is the same bits
/// whatever the other slots and vectors. One pass over the keys, from the last page to the first.
/// Pages are scattered, so each asks for the next one's keys.
template <int MostRows = 1, class Head>
void key_products(const Head& head, Index first, Index last, const float* vectors, float scale,
                  float* out, Index rows = 1, Index stride = 0) {
  using namespace detail;
  if constexpr (Codec<typename Head::Key>::scaled) {
    byte_key_products<MostRows>(head, first, last, vectors, scale, out, rows, stride);
  } else {
    constexpr int most = std::min(MostRows, kRowBlock);
    const Index page_size = head.page_size(), dim = head.head_dim();
    with_ask_for_keys(last, [&]<simd::Ask ask>() {
      const Index lead = product_lead<ask>(dim, page_size * Index{sizeof(typename Head::Key)});
      for_product_runs<kKeyVectors>(
          head, first, last, [&]<int Vectors>(Index page, Index next, Index at, Index slot) {
            const auto *keys = head.key_page(page) + at, *later = head.key_page(next) + at;
            for (Index r = 0; r < rows; r += kRowBlock) {
              with_constant<most>(std::min<Index>(most, rows - r), [&]<int Rows>() {
                product_block<Rows, Vectors, ask>(keys, r == 0 ? later : keys, lead, page_size, dim,
                                                  vectors + r * dim, scale, out + r * stride + slot,
                                                  stride);
              });
            }
          });
    });
  }
}

/// The same bits for the kMostLanes slots from `first` on, a multiple of as many, of which the
/// first is live; numbers of others in its page may be written, too, before and behind: `out` has
/// room for whole pages.
template <class Head>
void few_key_products(const Head& head, Index first, const float* vector, float scale, float* out) {
  if constexpr (Codec<typename Head::Key>::scaled) {
    // From where `key_products` starts: not every block fuses the same product with a sum.
    const Index start = first & -std::min<Index>(head.page_size(), 4 * simd::kMostLanes);
    detail::byte_key_products<1>(head, start, first + simd::kMostLanes, vector, scale, out, 1, 0);
  } else {
    const auto* keys = head.key_page(head.page_index(first)) + head.in_page(first);
    detail::product_block<1, detail::kLeastRun, simd::Ask::nothing>(
        keys, keys, 0, head.page_size(), head.head_dim(), vector, scale, out + first, 0);
  }
}

}  // namespace tersekv
