// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/byte_digits.hpp"
#include "tersekv/config.hpp"
#include "tersekv/int8.hpp"
#include "tersekv/simd.hpp"

// The inner loops of attention over keys and values of one byte: query rows and shares come in
// digits, and sums are whole numbers.

namespace tersekv::detail {

/// Query rows in digits.
struct ByteRows {
  const float* digits = nullptr;  ///< [rows, stride]
  const float* units = nullptr;   ///< [rows, 4]: the unit, and as integers what sums begin with
  Index stride = 0;

  static constexpr Index kUnits = 4;
  ByteRows from(Index row) const { return {digits + row * stride, units + row * kUnits, stride}; }
  const std::byte* digit(Index row, Index group, int digit) const {
    return reinterpret_cast<const std::byte*>(digits + row * stride) + group * kDigitBytes +
           4 * digit;
  }
  float unit(Index row) const { return units[row * kUnits]; }
  simd::Ints start(Index row, int digit) const {
    return simd::broadcast_bytes(units + row * kUnits + 1 + digit);
  }
};

/// scale * row[0, n) in digits, with zeros up to a whole vector. `units` [4].
inline void make_byte_row(const float* row, Index n, float scale, float* digits, float* units) {
  const Index padded = (n + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
  std::copy_n(row, n, digits);
  std::fill(digits + n, digits + padded, 0.0f);
  std::int32_t sums[kDigits];
  units[0] = to_signed_digits(digits, padded, digits, sums) * scale;
  for (std::int32_t& sum : sums) sum *= -128;  // keys are taken as x + 128
  std::memcpy(units + 1, sums, sizeof sums);
}

/// Rows query rows against Vectors * kLanes entries of a page, `dims` of their dimensions. Sums of
/// 65536 products of bytes fit 32 bits.
template <int Rows, int Vectors, simd::Ask ask>
inline void byte_key_block(const Int8* keys, const Ahead<Int8>& ahead, Index page_size, Index dims,
                           const ByteRows& rows, const float* scales, bool add, float* out,
                           Index out_stride) {
  simd::Ints sums[std::size_t{Rows}][std::size_t{kDigits}][std::size_t{Vectors}];
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    TERSEKV_HOST_UNROLL for (int c = 0; c < kDigits; ++c) {
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) sums[r][c][v] = rows.start(r, c);
    }
  }
  const simd::Ints signs = simd::Ints{} + static_cast<std::int32_t>(0x80808080u);
  for (Index group = 0; 4 * group < dims; ++group) {
    const Index at = 4 * group * page_size;
    ahead.ask_for<ask, 4 * Vectors>(group, 4 * page_size);
    simd::Ints k[std::size_t{Vectors}];
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      k[v] = simd::load_bytes(keys + at + 4 * v * simd::kLanes) ^ signs;  // + 128
    }
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      TERSEKV_HOST_UNROLL for (int c = 0; c < kDigits; ++c) {
        const simd::Ints digits = simd::broadcast_bytes(rows.digit(r, group, c));
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          sums[r][c][v] = simd::dot4(sums[r][c][v], k[v], digits);
        }
      }
    }
  }
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    const simd::Floats unit = simd::broadcast(rows.unit(r));
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      float* logits = out + r * out_stride + v * simd::kLanes;
      const simd::Floats so_far = add ? simd::load(logits) : simd::Floats{};
      const simd::Floats product = from_digit_sums(sums[r][0][v], sums[r][1][v]);
      const simd::Floats unscaled = simd::keep_order(product * unit);
      // Rounded before it is added: else some blocks fuse the two, and others do not.
      const simd::Floats part = simd::in_register(unscaled * simd::load(scales + v * simd::kLanes));
      simd::store(logits, so_far + part);
    }
  }
}

/// Vectors of entries or dimensions that the register file holds two sums each for.
template <int Rows>
inline constexpr int kByteVectors = std::max(1, kSumBlock / (Rows > 1 ? 2 * Rows : 4));

/// out[r, i] = scale_i <rows[r], key i> for `vectors` * kLanes entries from `keys` on, or that more
/// (`add`). As key_tile. A template, as all of its kind, so that programs without such keys do not
/// compile it.
template <class Key>
inline void byte_key_tile(const Key* keys, const Ahead<Key>& ahead, bool from_memory,
                          Index page_size, Index dims, Index vectors, const ByteRows& rows,
                          Index num_rows, const float* scales, bool add, float* out,
                          Index out_stride) {
  for (Index r = 0; r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      with_ask_of<Rows>(from_memory, ahead, [&]<simd::Ask ask>() {
        for_runs<kByteVectors<Rows>>(vectors, [&]<int Vectors>(Index v) {
          const Index at = v * simd::kLanes;
          const Ahead<Key> asked = r == 0 ? ahead : Ahead<Key>::none(keys);
          byte_key_block<Rows, Vectors, ask>(keys + 4 * at, asked.from(4 * at, at * dims),
                                             page_size, dims, rows.from(r), scales + at, add,
                                             out + r * out_stride + at, out_stride);
        });
      });
    });
  }
}

/// shares[i] = row[i] * scales[i] for i < entries, with zeros up to `padded`, whole vectors;
/// returns the largest. What is multiplied is read in whole vectors. Both rows may be the same
/// memory. None is negative.
inline float scaled_shares(const float* row, const float* scales, Index entries, Index padded,
                           float* shares) {
  simd::Floats most = {};
  Index i = 0;
  for (; i + simd::kLanes <= entries; i += simd::kLanes) {
    const simd::Floats share = simd::load(row + i) * simd::load(scales + i);
    simd::store(shares + i, share);
    most = simd::max(most, share);
  }
  if (i < entries) {  // scales of dead slots may be anything
    const simd::Floats share = simd::load(row + i) * simd::load(scales + i);
    const simd::Floats live = simd::first_lanes(share, entries - i, simd::Floats{});
    simd::store(shares + i, live);
    most = simd::max(most, live);
    i += simd::kLanes;
  }
  for (; i < padded; i += simd::kLanes) simd::store(shares + i, simd::Floats{});
  return simd::max(most);
}

/// sums[r, d] = factors[r] * sums[r, d] + units[r] * sum_i digits[r, i] * values[i, d]. As
/// value_block, for entries in fours.
template <int Rows, int Vectors, simd::Ask ask>
inline void byte_value_block(const Int8* values, const Ahead<Int8>& ahead, Index head_dim,
                             Index entries, Index rest, const float* digits, Index stride,
                             const float* units, const float* factors, float* sums,
                             Index sum_stride) {
  simd::Ints total[std::size_t{Rows}][std::size_t{kDigits}][std::size_t{Vectors}] = {};
  for (Index i = 0; i < entries; i += 4) {
    ahead.ask_for<ask, 4 * Vectors>(i / 4, 4 * head_dim);
    simd::Ints row[std::size_t{Vectors}];
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      row[v] = simd::load_bytes(values + i * head_dim + 4 * v * simd::kLanes);
    }
    if constexpr (ask == simd::Ask::nothing) {
      simd::touch_some<8>(values + i * head_dim + 4 * Vectors * simd::kLanes, rest);
    }
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      TERSEKV_HOST_UNROLL for (int c = 0; c < kDigits; ++c) {
        const auto* at = reinterpret_cast<const std::byte*>(digits + r * stride + i) + 4 * c;
        const simd::Ints shares = simd::broadcast_bytes(at);
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          total[r][c][v] = simd::dot4(total[r][c][v], shares, row[v]);
        }
      }
    }
  }
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    const float factor = factors == nullptr ? 1.0f : factors[r];
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      float* at = sums + r * sum_stride + v * simd::kLanes;
      const simd::Floats part = from_digit_sums(total[r][0][v], total[r][1][v]);
      const simd::Floats joining = simd::keep_order(part * units[r]);
      simd::store(at, simd::load(at) * factor + joining);
    }
  }
}

/// The same for `num_rows` rows and all columns. As value_tile.
template <class Value>
inline void byte_value_tile(const Value* values, const Ahead<Value>& ahead, bool from_memory,
                            Index head_dim, Index entries, const float* digits, Index num_rows,
                            Index stride, const float* units, const float* factors, float* sums,
                            Index sum_stride) {
  const Index vectors = padded_dim(head_dim) / simd::kLanes;
  for (Index r = 0; r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      with_ask_of<Rows>(from_memory, ahead, [&]<simd::Ask ask>() {
        for_runs<kByteVectors<Rows>>(vectors, [&]<int Vectors>(Index v) {
          const Index at = v * simd::kLanes, after = head_dim - at - Vectors * simd::kLanes;
          const Index rest = ask == simd::Ask::nothing && r == 0 && v == 0 ? 4 * after : 0;
          const Ahead<Int8> asked = r == 0 ? ahead : Ahead<Int8>::none(values);
          byte_value_block<Rows, Vectors, ask>(
              values + 4 * at, asked.from(4 * at, at * entries), head_dim, entries, rest,
              digits + r * stride, stride, units + r, factors == nullptr ? nullptr : factors + r,
              sums + r * sum_stride + at, sum_stride);
        });
      });
    });
  }
}

}  // namespace tersekv::detail
