// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

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
/// of splits. `heads` of the launch, the longest has `longest` entries as far as the host knows.
/// Asynchronous. Sets args.splits and args.tile, which the joining step needs.
template <class Runtime, class Dims, class KeyCodec, class ValueCodec, class T>
void launch_attention(AttentionArgs<KeyCodec, ValueCodec, T>& args, Index heads, Index longest,
                      Index most_parts, const Tuning& tuning, typename Runtime::Stream stream) {
  const Index rows = args.num_rows * args.heads.shape.group_size;
  const auto launch = [&]<class Body>(std::type_identity<Body>) {
    const Index row_tiles = (rows + Body::kTileRows - 1) / Body::kTileRows;
    const Index tiles = (longest + Body::kTileEntries - 1) / Body::kTileEntries;
    const Index most = most_parts / std::max<Index>(heads * rows, 1);
    args.splits = tuning.splits > 0
                      ? static_cast<int>(std::max<Index>(std::min<Index>(tuning.splits, most), 1))
                      : choose_splits(tiles, heads * row_tiles,
                                      Runtime::template resident_blocks<Body>(), most);
    args.least_tiles = tuning.least_tiles;
    args.tile = Body::kTileEntries;
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
