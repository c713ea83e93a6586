// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant.hpp"

namespace llama {

/// Rows of a weight that products work on at once: one to each lane of the widest vectors.
inline constexpr std::int64_t kTileRows = 16;

/// Where a tile's block, kTileRows rows of kBlock elements, has what; in bytes.
///
///   scales     [row], halves
///   offsets    [row], halves, where the format has them
///   fifths     [8 groups of 4 columns], a bit to each (row, column), where levels have 5 bits
///   levels     4 bits: [4 groups of 4 columns][row][column], low halves, and 16 columns on in the
///              high halves; 8 bits: [8 groups of 4 columns][row][column]
///
/// So that 64 bytes are 4 columns of every row, which is what an integer product multiplies with
/// the same 4 elements of x: nothing is added up across lanes.
struct TileLayout {
  explicit constexpr TileLayout(LevelFormat format)
      : offsets(2 * kTileRows),
        fifths(offsets + (format.has_offset ? 2 * kTileRows : 0)),
        levels(fifths + (format.bits == 5 ? kTileRows * kBlock / 8 : 0)),
        bytes(levels + kTileRows * kBlock / (format.bits == 8 ? 1 : 2)) {}

  std::int64_t offsets, fifths, levels, bytes;
};

/// A quantised weight's elements once more, as products read them: in one run from start to end.
/// Little larger than the weight itself: its last tile is filled up with zeros. Its memory is
/// borrowed.
class PackedWeight {
 public:
  /// What a weight that is_quantised() needs, a multiple of 64.
  static std::int64_t bytes(const Tensor& tensor);

  /// Copies the elements of `tensor` to `memory`, which is best aligned to 64 bytes.
  PackedWeight(const Tensor& tensor, std::byte* memory);

  TensorType type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  /// [cols / kBlock, TileLayout::bytes]
  const std::byte* tile(std::int64_t i) const { return memory_ + i * tile_bytes_; }

 private:
  TensorType type_;
  std::int64_t rows_, cols_, tile_bytes_;
  const std::byte* memory_;
};

}  // namespace llama
