// SPDX-License-Identifier: Apache-2.0
#include "packed_weight.hpp"

#include <algorithm>
#include <cstring>

namespace llama {
namespace {

constexpr std::int64_t kGroup = 4;  // columns that an integer product adds up
constexpr std::int64_t kGroups = kBlock / kGroup;

// Puts one stored block, that of row `row`, into its places in a tile's block. In the file a block
// is a scale, an offset, fifth bits and levels, in this order, those that the format has.
void pack_block(const std::byte* src, LevelFormat format, std::int64_t row, std::byte* tile) {
  const TileLayout layout(format);
  std::memcpy(tile + 2 * row, src, 2);
  src += 2;
  if (format.has_offset) {
    std::memcpy(tile + layout.offsets + 2 * row, src, 2);
    src += 2;
  }
  if (format.bits == 5) {
    for (std::int64_t g = 0; g < kGroups; ++g) {
      const auto four =
          static_cast<std::byte>(static_cast<unsigned>(src[g / 2]) >> (g % 2 * 4) & 15u);
      tile[layout.fifths + g * kTileRows / 2 + row / 2] |= four << (row % 2 * 4);
    }
    src += 4;
  }
  const std::int64_t words = format.bits == 8 ? kGroups : kGroups / 2;
  for (std::int64_t w = 0; w < words; ++w) {
    std::uint32_t four;
    std::memcpy(&four, src + kGroup * w, sizeof four);
    if (format.bits == 8) four ^= 0x80808080u;  // signed to unsigned
    std::memcpy(tile + layout.levels + (w * kTileRows + row) * kGroup, &four, sizeof four);
  }
}

std::int64_t bytes_of_tile(const Tensor& tensor) {
  return tensor.cols / kBlock * TileLayout(level_format(tensor.type)).bytes;
}

}  // namespace

std::int64_t PackedWeight::bytes(const Tensor& tensor) {
  const std::int64_t tiles = (tensor.rows + kTileRows - 1) / kTileRows;
  return (tiles * bytes_of_tile(tensor) + 63) / 64 * 64;
}

PackedWeight::PackedWeight(const Tensor& tensor, std::byte* memory)
    : type_(tensor.type),
      rows_(tensor.rows),
      cols_(tensor.cols),
      tile_bytes_(bytes_of_tile(tensor)),
      memory_(memory) {
  std::fill_n(memory, bytes(tensor), std::byte{0});
  const LevelFormat format = level_format(type_);
  const std::int64_t tile_block = TileLayout(format).bytes;
  const std::int64_t block = block_layout(type_)->bytes;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::byte* src = tensor.data + row * tensor.row_bytes;
    std::byte* dst = memory + row / kTileRows * tile_bytes_;
    for (std::int64_t b = 0; b < cols_ / kBlock; ++b) {
      pack_block(src + b * block, format, row % kTileRows, dst + b * tile_block);
    }
  }
}

}  // namespace llama
