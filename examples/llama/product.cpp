// SPDX-License-Identifier: Apache-2.0
#include "product.hpp"

#include <algorithm>

#include "lanes.hpp"
#include "tersekv/simd_tiles.hpp"

namespace llama {
namespace {

using tersekv::simd::Tiles;
using tersekv::simd::TileSetup;

// Rows of x that meet a tile's block while its levels are in registers.
constexpr std::int64_t kMostRows = 8;

// Rows of x that stay in the second-level cache while the weights pass by.
constexpr std::int64_t kRowsAtOnce = 128;

// The unsigned levels of a tile's block: 8 groups of 4 columns.
template <TensorType type>
[[gnu::always_inline]] inline void load_levels(const std::byte* block, lanes::Bytes (&levels)[8]) {
  constexpr LevelFormat format = level_format(type);
  constexpr TileLayout layout(format);
  const std::byte* at = block + layout.levels;
  if constexpr (format.bits == 8) {
    TERSEKV_HOST_UNROLL for (int g = 0; g < 8; ++g) levels[g] = lanes::load_bytes(at + 64 * g);
  } else {
    TERSEKV_HOST_UNROLL for (int g = 0; g < 4; ++g) {
      const lanes::Bytes both = lanes::load_bytes(at + 64 * g);
      levels[g] = lanes::low_halves(both);
      levels[g + 4] = lanes::high_halves(both);
    }
  }
  if constexpr (format.bits == 5) {
    TERSEKV_HOST_UNROLL for (int g = 0; g < 8; ++g) {
      levels[g] = lanes::add_fifths(levels[g], block + layout.fifths + 8 * g);
    }
  }
}

// The integer products of one row of x with a block; two sums at a time hide each other's latency.
// Inlined at any cost: the levels are to stay in registers.
template <int bits>
[[gnu::always_inline]] inline lanes::Ints dot_block(const lanes::Bytes (&levels)[8],
                                                    const RoundedRow& x, std::int64_t at) {
  lanes::Ints even = lanes::zero_ints(), odd = lanes::zero_ints();
  for (int g = 0; g < 8; g += 2) {
    even = lanes::dot<bits>(even, levels[g], x.coarse + at + 4 * g);
    odd = lanes::dot<bits>(odd, levels[g + 1], x.coarse + at + 4 * g + 4);
  }
  even = lanes::times_256(even);
  odd = lanes::times_256(odd);
  for (int g = 0; g < 8; g += 2) {
    even = lanes::dot<bits>(even, levels[g], x.fine + at + 4 * g);
    odd = lanes::dot<bits>(odd, levels[g + 1], x.fine + at + 4 * g + 4);
  }
  return lanes::add(even, odd);
}

// What makes floats of a block's integer products: a scale for each row of the weight, and what its
// levels are off by.
template <TensorType type>
struct BlockUnits {
  lanes::Floats scales, offsets;

  explicit BlockUnits(const std::byte* block) : scales(lanes::load_halves(block)) {
    constexpr LevelFormat format = level_format(type);
    offsets = format.has_offset ? lanes::load_halves(block + TileLayout(format).offsets)
                                : lanes::times(scales, format.zero);
  }
  // sum + the products of block b of a row of x.
  [[gnu::always_inline]] lanes::Floats added(lanes::Floats sum, lanes::Ints dots,
                                             const RoundedRow& x, std::int64_t b) const {
    const lanes::Floats scaled = lanes::times(lanes::to_floats(dots), scales);
    sum = lanes::plus_product(sum, scaled, x.scales[b]);
    return lanes::plus_product(sum, offsets, x.sums[b]);
  }
};

// kRows rows of x, from `first` on, by one tile: y [kRows, stride], `count` columns of it.
template <TensorType type, std::int64_t kRows>
void multiply_tile(const std::byte* tile, const RoundedRows& x, std::int64_t first,
                   std::int64_t count, float* y, std::int64_t stride) {
  constexpr LevelFormat format = level_format(type);
  constexpr TileLayout layout(format);
  RoundedRow rows[kRows];
  lanes::Floats sums[kRows];
  for (std::int64_t r = 0; r < kRows; ++r) {
    rows[r] = x.row(first + r);
    sums[r] = lanes::zero_floats();
  }
  for (std::int64_t b = 0; b < x.cols() / kBlock; ++b, tile += layout.bytes) {
    lanes::Bytes levels[8];
    load_levels<type>(tile, levels);
    const BlockUnits<type> units(tile);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const lanes::Ints dots = dot_block<format.bits>(levels, rows[r], b * kBlock);
      sums[r] = units.added(sums[r], dots, rows[r], b);
    }
  }
  for (std::int64_t r = 0; r < kRows; ++r) lanes::store(sums[r], count, y + r * stride);
}

// Whether there are tile registers, and rows enough for them.
bool by_registers(const RoundedRows& x) { return x.rows() >= kTileRows && Tiles::granted(); }

#if TERSEKV_TILES && defined(TERSEKV_LLAMA_AVX512)
// A block's levels where a tile register can load them from.
template <TensorType type>
[[gnu::always_inline]] inline const std::byte* spread_levels(const std::byte* block,
                                                             std::byte (&spread)[8][64]) {
  constexpr LevelFormat format = level_format(type);
  if constexpr (format.bits == 8) return block + TileLayout(format).levels;
  lanes::Bytes groups[8];
  load_levels<type>(block, groups);
  TERSEKV_HOST_UNROLL for (int g = 0; g < 8; ++g) lanes::store_bytes(groups[g], spread[g]);
  return spread[0];
}

// The same for as many rows as a tile register has, by such registers; the products of both planes
// come back through memory. What is stored is loaded late, so levels are spread a block ahead.
template <TensorType type>
void multiply_registers(const std::byte* tile, const RoundedRows& x, std::int64_t first,
                        std::int64_t count, float* y, std::int64_t stride) {
  constexpr TileLayout layout(level_format(type));
  constexpr auto product = tersekv::simd::TileProduct::signed_by_unsigned_bytes;
  constexpr int rows = tersekv::simd::kTileRows;
  alignas(64) std::byte spread[2][8][64], coarse[rows][64], fine[rows][64];
  const Tiles registers;
  RoundedRow row[rows];
  lanes::Floats sums[rows];
  TERSEKV_HOST_UNROLL for (int r = 0; r < rows; ++r) {
    row[r] = x.row(first + r);
    sums[r] = lanes::zero_floats();
  }
  const std::byte* next = spread_levels<type>(tile, spread[0]);
  for (std::int64_t b = 0, blocks = x.cols() / kBlock; b < blocks; ++b, tile += layout.bytes) {
    const std::byte* levels = next;
    if (b + 1 < blocks) next = spread_levels<type>(tile + layout.bytes, spread[(b + 1) % 2]);
    registers.zero<0>();
    registers.zero<1>();
    registers.load<6>(levels, 64);
    registers.load<4>(row[0].coarse + b * kBlock, x.cols());
    registers.load<5>(row[0].fine + b * kBlock, x.cols());
    registers.multiply<product, 0, 4, 6>();
    registers.multiply<product, 1, 5, 6>();
    registers.store<0>(coarse, 64);
    registers.store<1>(fine, 64);
    const BlockUnits<type> units(tile);
    TERSEKV_HOST_UNROLL for (int r = 0; r < rows; ++r) {
      const lanes::Ints dots =
          lanes::add(lanes::times_256(lanes::load_bytes(coarse[r])), lanes::load_bytes(fine[r]));
      sums[r] = units.added(sums[r], dots, row[r], b);
    }
  }
  for (int r = 0; r < rows; ++r) lanes::store(sums[r], count, y + r * stride);
}

// As many of rows [first, last) as there are registers for; returns the first that is left.
template <TensorType type>
std::int64_t multiply_by_registers(const std::byte* tile, const RoundedRows& x, std::int64_t first,
                                   std::int64_t last, std::int64_t count, float* y,
                                   std::int64_t stride) {
  for (; by_registers(x) && first + kTileRows <= last; first += kTileRows) {
    multiply_registers<type>(tile, x, first, count, y + first * stride, stride);
  }
  return first;
}
#else
template <TensorType>
std::int64_t multiply_by_registers(const std::byte*, const RoundedRows&, std::int64_t first,
                                   std::int64_t, std::int64_t, float*, std::int64_t) {
  return first;
}
#endif

// Rows [first, last) of x by one tile, kMost at a time, the rest by halves of that.
template <TensorType type, std::int64_t kMost = kMostRows>
void multiply_rows(const std::byte* tile, const RoundedRows& x, std::int64_t first,
                   std::int64_t last, std::int64_t count, float* y, std::int64_t stride) {
  for (; first + kMost <= last; first += kMost) {
    multiply_tile<type, kMost>(tile, x, first, count, y + first * stride, stride);
  }
  if constexpr (kMost > 1) {
    if (first < last) multiply_rows<type, kMost / 2>(tile, x, first, last, count, y, stride);
  }
}

// The tiles [first, last) of one product.
template <TensorType type>
void multiply_tiles(const Product& product, const RoundedRows& x, std::int64_t first,
                    std::int64_t last) {
  const std::int64_t rows = product.weight->rows();
  for (std::int64_t start = 0; start < x.rows(); start += kRowsAtOnce) {
    const std::int64_t end = std::min(start + kRowsAtOnce, x.rows());
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t count = std::min(kTileRows, rows - i * kTileRows);
      float* y = product.y + i * kTileRows;
      const std::byte* tile = product.weight->tile(i);
      const std::int64_t left = multiply_by_registers<type>(tile, x, start, end, count, y, rows);
      multiply_rows<type>(tile, x, left, end, count, y, rows);
    }
  }
}

}  // namespace

void multiply(std::span<const Product> products, const RoundedRows& x, Team& team) {
  team.run([&](int thread) {
    const TileSetup setup(by_registers(x), kBlock);
    for (const Product& product : products) {
      const std::int64_t tiles = product.weight->tiles();
      const std::int64_t first = tiles * thread / team.threads();
      const std::int64_t last = tiles * (thread + 1) / team.threads();
      with_quantised(product.weight->type(),
                     [&]<TensorType type>() { multiply_tiles<type>(product, x, first, last); });
    }
  });
}

}  // namespace llama
