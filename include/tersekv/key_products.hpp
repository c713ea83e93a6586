// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_bytes.hpp"
#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

namespace detail {

/// The slots [first, last) page by page, rounded up to whole runs of Run vectors (or pages, where
/// they are shorter): body.template operator()<Vectors>(page, the first entry in it, its slot).
template <int Run, class Head, class F>
void for_product_runs(const Head& head, Index first, Index last, F&& body) {
  const Index page_size = head.page_size();
  for (Index start = first; start < last;) {
    const Index page = head.page_index(start), skip = head.in_page(start);
    const Index entries = std::min(page_size - skip, last - start);
    const Index wanted = (entries + simd::kLanes - 1) / simd::kLanes;
    const Index vectors =
        std::min((page_size - skip) / simd::kLanes, (wanted + Run - 1) / Run * Run);
    for_runs<Run>(vectors, [&]<int Vectors>(Index v) {
      const Index at = v * simd::kLanes;
      body.template operator()<Vectors>(page, skip + at, start + at);
    });
    start += entries;
  }
}

/// As `key_products`, over the keys of one byte, whose products with another are exact: its digits
/// hold all of it. Long keys are worked through in parts, so that their digits fit the stack, and
/// rounded where a part lacks the largest element.
template <class Head>
void byte_key_products(const Head& head, Index first, Index last, const float* vector, float scale,
                       float* out) {
  constexpr Index most = 256;
  alignas(64) float digits[std::size_t{most}];
  float units[std::size_t{ByteRows::kUnits}];
  const Index page_size = head.page_size(), dim = head.head_dim();
  for (Index from = 0; from < dim; from += most) {
    const Index dims = std::min(most, dim - from);
    make_byte_row(vector + from, dims, scale, digits, units);
    for_product_runs<kByteVectors<1>>(
        head, first, last, [&]<int Vectors>(Index page, Index at, Index slot) {
          const Index next = slot - at + page_size < last ? page + 1 : page;
          const Index skip = from * page_size + 4 * at;
          byte_key_block<1, Vectors, true>(head.key_page(page) + skip, head.key_page(next) + skip,
                                           page_size, dims, {digits, units, most},
                                           head.key_scale_page(page) + at, from > 0, out + slot, 0);
        });
  }
}

}  // namespace detail

/// The slot at or before `slot` from which `key_products` may start.
inline Index product_run_start(Index page_size, Index slot) {
  return slot & -std::min<Index>(page_size, detail::kKeyVectors * simd::kLanes);
}

/// out[i] = scale * <vector, key of slot i> for slots [first, last), first one that
/// `product_run_start` gives; up to 63 numbers behind `last`, in the same page, are written too
/// (arbitrary). A product is the same bits whatever the other slots. One pass over the keys. Pages
/// are scattered, so each asks for the next one's keys.
template <class Head>
void key_products(const Head& head, Index first, Index last, const float* vector, float scale,
                  float* out) {
  using namespace detail;
  if constexpr (Codec<typename Head::Key>::scaled) {
    byte_key_products(head, first, last, vector, scale, out);
  } else {
    const Index page_size = head.page_size(), dim = head.head_dim();
    for_product_runs<kKeyVectors>(
        head, first, last, [&]<int Vectors>(Index page, Index at, Index slot) {
          const Index next = slot - at + page_size < last ? page + 1 : page;
          key_block<1, Vectors, true>(head.key_page(page) + at, head.key_page(next) + at, dim,
                                      page_size, dim, vector, dim, scale, out + slot, 0);
        });
  }
}

}  // namespace tersekv
