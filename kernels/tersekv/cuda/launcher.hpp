// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tersekv/cuda/body/attention.hpp"
#include "tersekv/cuda/body/attention_mma.hpp"
#include "tersekv/cuda/plan.hpp"
#include "tersekv/errors.hpp"

namespace tersekv::cuda {

/// The head_dims that a cache's attention is compiled for.
template <int... Dims>
struct HeadDims {
  static bool contains(Index dim) { return ((dim == Dims) || ...); }
  static std::string list() {
    std::string text;
    ((text += (text.empty() ? "" : ", ") + std::to_string(Dims)), ...);
    return text;
  }
  /// f.template operator()<D>() for the D that equals dim.
  template <class F>
  static void with(Index dim, F&& f) {
    ((dim == Dims ? (f.template operator()<Dims>(), true) : false) || ...);
  }
};
using AllHeadDims = HeadDims<64, 80, 96, 128, 192, 256>;

/// Whether tensor cores can take these: 16-bit storage, queries as the keys are stored.
template <class KeyCodec, class ValueCodec, class T>
inline constexpr bool kFitsTensorCores = sizeof(KeyCodec) == 2 &&
                                         sizeof(ValueCodec) == 2 && std::is_same_v<T, KeyCodec>;
/// Query rows from which they are used.
inline constexpr Index kLeastMmaRows = 4;

/// Launches attention: the body for the storage, head_dim and number of query rows, and the number
/// of splits for heads of at most `lengths` entries, one number for each head of the launch.
/// Asynchronous. Sets args.splits, args.least_tiles and args.tile, which the joining step needs.
template <class Runtime, class Dims, class KeyCodec, class ValueCodec, class T>
void launch_attention(AttentionArgs<KeyCodec, ValueCodec, T>& args,
                      const std::vector<Index>& lengths, Index most_parts, const Tuning& tuning,
                      typename Runtime::Stream stream) {
  const Index rows = args.num_rows * args.heads.shape.group_size;
  const auto heads = static_cast<Index>(lengths.size());
  const auto launch = [&]<class Body>(std::type_identity<Body>) {
    const Index row_tiles = (rows + Body::kTileRows - 1) / Body::kTileRows;
    const Index most = std::max<Index>(most_parts / std::max<Index>(heads * rows, 1), 1);
    args.tile = Body::kTileEntries;
    if (tuning.splits > 0) {
      args.splits = static_cast<int>(std::min<Index>(tuning.splits, most));
      args.least_tiles = 1;
    } else {
      std::vector<Index> tiles;
      for (Index length : lengths) {
        const Index entries = tuning.plan_length == kAuto ? length : tuning.plan_length;
        tiles.push_back((entries + Body::kTileEntries - 1) / Body::kTileEntries);
      }
      const Splits splits =
          choose_splits(tiles, row_tiles, Runtime::template resident_blocks<Body>(), most);
      args.splits = splits.count;
      // Where lengths are only planned for, shorter heads are cut as finely as there are splits.
      args.least_tiles = tuning.plan_length == kAuto ? splits.tiles_each : 1;
    }
    Runtime::template launch<Body>(
        Grid{args.splits, static_cast<int>(heads), static_cast<int>(row_tiles)}, 1, nullptr, stream,
        args);
  };
  constexpr int warps = Runtime::kAttentionWarps;
  Dims::with(args.heads.layout.head_dim, [&]<int Dim>() {
    if constexpr (kFitsTensorCores<KeyCodec, ValueCodec, T> && Dim % 16 == 0) {
      if (rows >= kLeastMmaRows) {
        return launch(std::type_identity<AttentionMmaBody<KeyCodec, ValueCodec, Dim, warps>>());
      }
    } else {
      if (rows > 8) {
        return launch(std::type_identity<AttentionBody<KeyCodec, ValueCodec, T, Dim, 16, warps>>());
      }
      if (rows > 4) {
        return launch(std::type_identity<AttentionBody<KeyCodec, ValueCodec, T, Dim, 8, warps>>());
      }
    }
    if (rows > 2) {
      return launch(std::type_identity<AttentionBody<KeyCodec, ValueCodec, T, Dim, 4, warps>>());
    }
    if (rows > 1) {
      return launch(std::type_identity<AttentionBody<KeyCodec, ValueCodec, T, Dim, 2, warps>>());
    }
    launch(std::type_identity<AttentionBody<KeyCodec, ValueCodec, T, Dim, 1, warps>>());
  });
}

}  // namespace tersekv::cuda
