// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersekv/config.hpp"

// The tile registers of Intel's processors (AMX), which multiply 16 rows by 16 columns of 64 bytes
// at once: for who defines TERSEKV_AMX as 1 and compiles for a processor that has them. Not by
// default, as there are virtual machines that report tiles and grant them, and then stop a program
// at its first.

// As g++ says it, or clang.
#if (defined(__AMX_INT8__) && defined(__AMX_BF16__)) || \
    (defined(__AMXINT8__) && defined(__AMXBF16__))
#define TERSEKV_HAS_AMX 1
#else
#define TERSEKV_HAS_AMX 0
#endif
#if defined(TERSEKV_AMX) && TERSEKV_AMX && TERSEKV_HAS_AMX && defined(__AVX512BW__) && \
    defined(__linux__) && !defined(__CUDACC__)
#define TERSEKV_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define TERSEKV_TILES 0
#endif

namespace tersekv::simd {

/// Of a tile: bytes of a row, rows, and columns of 32 bits.
inline constexpr Index kTileBytes = 64, kTileRows = 16, kTileColumns = 16;

/// Of what products are; pairs, of BFloat16, count what is below the normal floats as 0.
enum class TileProduct { signed_bytes, unsigned_by_signed_bytes, signed_by_unsigned_bytes, pairs };

/// Eight registers. Numbers 0 to 3 hold sums; 4 and 5 what is multiplied; 6 and 7 by what: of their
/// row i and column j, four bytes, those that meet the four from byte 4 i on of a multiplied row
/// and are added up in column j.
#if TERSEKV_TILES
struct Tiles {
  static constexpr bool exist = true;

  /// Whether the system grants them to this process, for good; asked once.
  static bool granted() {
    static const bool yes = [] {
      constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
      return syscall(SYS_arch_prctl, request, tile_data) == 0;
    }();
    return yes;
  }

  template <int tile>
  void zero() const {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  /// Rows `stride` bytes apart.
  template <int tile>
  void load(const void* rows, Index stride) const {
    asm volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd tmm%c2, [%0+%1*1]}" ::"r"(rows),
                 "r"(stride), "i"(tile)
                 : "memory");
  }
  template <int tile>
  void store(void* rows, Index stride) const {
    asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}" ::"r"(rows),
                 "r"(stride), "i"(tile)
                 : "memory");
  }
  /// sums += left * right.
  template <TileProduct product, int sums, int left, int right>
  void multiply() const {
#define TERSEKV_MULTIPLY(name)                                \
  asm volatile("{" name " %%tmm%c2, %%tmm%c1, %%tmm%c0|" name \
               " tmm%c0, tmm%c1, tmm%c2}" ::"i"(sums),        \
               "i"(left), "i"(right))
    if constexpr (product == TileProduct::signed_bytes) {
      TERSEKV_MULTIPLY("tdpbssd");
    } else if constexpr (product == TileProduct::unsigned_by_signed_bytes) {
      TERSEKV_MULTIPLY("tdpbusd");
    } else if constexpr (product == TileProduct::signed_by_unsigned_bytes) {
      TERSEKV_MULTIPLY("tdpbsud");
    } else {
      TERSEKV_MULTIPLY("tdpbf16ps");
    }
#undef TERSEKV_MULTIPLY
  }
};

/// Has the registers set up, as long as it lives, for a thread that `uses` them, to multiply
/// `left_rows` rows of `left_bytes` bytes, a multiple of 4. Precondition: granted, or unused.
class TileSetup {
 public:
  explicit TileSetup(bool uses, Index left_bytes = kTileBytes, Index left_rows = kTileRows)
      : used_(uses) {
    if (!used_) return;
    struct {
      std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } setup;
    for (int tile = 0; tile < 8; ++tile) {
      const bool left = tile == 4 || tile == 5, right = tile > 5;
      setup.row_bytes[tile] = static_cast<std::uint16_t>(left ? left_bytes : kTileBytes);
      setup.rows[tile] = static_cast<std::uint8_t>(right ? left_bytes / 4 : left_rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(setup));
  }
  TileSetup(const TileSetup&) = delete;
  TileSetup& operator=(const TileSetup&) = delete;
  ~TileSetup() {
    if (used_) asm volatile("tilerelease");
  }

 private:
  bool used_;
};
#else
struct Tiles {
  static constexpr bool exist = false;
  static bool granted() { return false; }
};
struct TileSetup {
  explicit TileSetup(bool, Index = kTileBytes, Index = kTileRows) {}
};
#endif

}  // namespace tersekv::simd
