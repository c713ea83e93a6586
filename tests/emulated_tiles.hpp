// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tersekv/element.hpp"
#include "tersekv/simd_tiles.hpp"

namespace support {

/// What tersekv::simd::Tiles does, without a processor that has them, slowly.
class EmulatedTiles {
 public:
  /// Of what is multiplied and of sums, as tersekv::simd::TileSetup has them.
  static inline int left_rows = 16;

  using Index = tersekv::Index;
  static constexpr bool exist = true;
  static bool granted() { return true; }

  template <int tile>
  void zero() const {
    std::memset(tiles_[tile], 0, sizeof tiles_[tile]);
  }
  template <int tile>
  void load(const void* rows, Index stride) const {
    for (Index i = 0; i < (tile < 6 ? left_rows : 16); ++i) {
      std::memcpy(tiles_[tile][i], static_cast<const std::byte*>(rows) + i * stride, 64);
    }
  }
  template <int tile>
  void store(void* rows, Index stride) const {
    for (Index i = 0; i < (tile < 6 ? left_rows : 16); ++i) {
      std::memcpy(static_cast<std::byte*>(rows) + i * stride, tiles_[tile][i], 64);
    }
  }
  template <tersekv::simd::TileProduct product, int sums, int left, int right>
  void multiply() const {
    using tersekv::simd::TileProduct;
    for (int i = 0; i < left_rows; ++i) {
      for (int j = 0; j < 16; ++j) {
        for (int k = 0; k < 16; ++k) {
          const std::byte *a = tiles_[left][i] + 4 * k, *b = tiles_[right][k] + 4 * j;
          std::byte* sum = tiles_[sums][i] + 4 * j;
          if constexpr (product == TileProduct::pairs) {
            float so_far = as<float>(sum);
            for (int e = 0; e < 4; e += 2) {
              so_far += tersekv::to_float(as<tersekv::BFloat16>(a + e)) *
                        tersekv::to_float(as<tersekv::BFloat16>(b + e));
            }
            std::memcpy(sum, &so_far, 4);
          } else {
            constexpr bool unsigned_left = product == TileProduct::unsigned_by_signed_bytes;
            constexpr bool unsigned_right = product == TileProduct::signed_by_unsigned_bytes;
            using Left = std::conditional_t<unsigned_left, std::uint8_t, std::int8_t>;
            using Right = std::conditional_t<unsigned_right, std::uint8_t, std::int8_t>;
            auto so_far = as<std::int32_t>(sum);
            for (int e = 0; e < 4; ++e) so_far += as<Left>(a + e) * as<Right>(b + e);
            std::memcpy(sum, &so_far, 4);
          }
        }
      }
    }
  }

 private:
  template <class T>
  static T as(const std::byte* p) {
    T x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }

  mutable std::byte tiles_[8][16][64] = {};
};

}  // namespace support
