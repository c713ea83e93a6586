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
/// Query rows from which they are used, and above which warps have rows of their own.
inline constexpr Index kLeastMmaRows = 2, kMostSharedRows = 32;
/// Of a block's warps, those with rows of their own: all, as far as registers hold the outputs.
template <int Dim, int Warps>
inline constexpr int kPromptRowWarps = std::max(Dim > 192   ? Warps / 4
                                                : Dim > 128 ? Warps / 2
                                                            : Warps,
                                                1);

/// f(std::type_identity<Body>()) for the body that serves the rows of a launch best.
template <class Runtime, class Dims, class KeyCodec, class ValueCodec, class T, class F>
void with_attention_body(const AttentionArgs<KeyCodec, ValueCodec, T>& args, F&& f) {
  constexpr int warps = Runtime::kAttentionWarps;
  const Index rows = args.num_rows * args.heads.shape.group_size;
  Dims::with(args.heads.layout.head_dim, [&]<int Dim>() {
    const auto plain = [&]<int Rows>(std::integral_constant<int, Rows>) {
      f(std::type_identity<AttentionBody<KeyCodec, ValueCodec, T, Dim, Rows, warps>>());
    };
    if constexpr (kFitsTensorCores<KeyCodec, ValueCodec, T> && Dim % 16 == 0) {
      if (rows > kMostSharedRows) {
        constexpr int row_warps = kPromptRowWarps<Dim, warps>;
        return f(
            std::type_identity<AttentionMmaBody<KeyCodec, ValueCodec, Dim, warps, row_warps>>());
      }
      if (rows >= kLeastMmaRows) {
        return f(std::type_identity<AttentionMmaBody<KeyCodec, ValueCodec, Dim, warps>>());
      }
    } else {
      if (rows > 8) return plain(std::integral_constant<int, 16>());
      if (rows > 4) return plain(std::integral_constant<int, 8>());
    }
    // A body for two rows would save arithmetic that memory hides, and cost compile time.
    if (rows > 1) return plain(std::integral_constant<int, 4>());
    plain(std::integral_constant<int, 1>());
  });
}

/// Threads of each of `blocks` blocks. Where a body takes fewer: all if a block has a
/// multiprocessor to itself, half if they share one, and one waits while another works.
template <class Runtime, class Body>
int block_threads(int blocks) {
  constexpr int half = Body::kThreads / 2 / kWarp * kWarp;
  return kFewerThreads<Body> && half > 0 && blocks > Runtime::multiprocessors() ? half
                                                                                : Body::kThreads;
}

/// The grid of a body's launch for heads of at most `lengths` entries, one number for each head of
/// the launch. Sets args.splits, args.least_tiles and args.tile.
template <class Runtime, class Body, class Args>
Grid plan_attention(Args& args, const std::vector<Index>& lengths, Index most_parts,
                    const Tuning& tuning) {
  const Index rows = args.num_rows * args.heads.shape.group_size;
  const auto heads = static_cast<Index>(lengths.size());
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
  return {args.splits, static_cast<int>(heads), static_cast<int>(row_tiles)};
}

/// Launches attention alone, for heads of at most `lengths` entries. Asynchronous. Sets what
/// plan_attention sets, which the joining step needs.
template <class Runtime, class Dims, class KeyCodec, class ValueCodec, class T>
void launch_attention(AttentionArgs<KeyCodec, ValueCodec, T>& args,
                      const std::vector<Index>& lengths, Index most_parts, const Tuning& tuning,
                      typename Runtime::Stream stream) {
  with_attention_body<Runtime, Dims>(args, [&]<class Body>(std::type_identity<Body>) {
    const Grid grid = plan_attention<Runtime, Body>(args, lengths, most_parts, tuning);
    Runtime::template launch<Body>(grid, 1, nullptr, stream, args);
  });
}

}  // namespace tersekv::cuda
