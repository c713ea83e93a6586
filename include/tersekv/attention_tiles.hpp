// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "tersekv/attention_request.hpp"
#include "tersekv/element.hpp"
#include "tersekv/tiled_bytes.hpp"
#include "tersekv/tiled_pages.hpp"
#include "tersekv/tiled_pieces.hpp"

namespace tersekv::detail {

/// Requests over 16 bits: pages are taken apart for the many rows of a chunk, and not for those of
/// a token.
template <class Key, class Value, class Tiles>
class Tiled16Bits {
  using Chunk = TiledPieces<Key, Value, Tiles>;
  using Token = TiledPages<Key, Value, Tiles>;

 public:
  static constexpr bool exist = Chunk::exist;
  static bool fits(Index head_dim, Index block) { return Chunk::fits(head_dim, block); }
  static bool pays(Index rows, Index head_dim, Index block) {
    return Token::pays(rows, head_dim, block);
  }

  Tiled16Bits(const AttentionRequest& request, Index rows, Index head_dim, Index block,
              const AttentionBuffers& buffers)
      : chunk_(request, rows, head_dim, block, buffers),
        token_(request, rows, head_dim, block, buffers) {}
  static Index room(Index rows, Index head_dim, Index block) {
    const Index of_chunk = Chunk::room(rows, head_dim, block);
    return Token::exist ? std::max(of_chunk, Token::room(rows, head_dim, block)) : of_chunk;
  }
  bool on() const { return chunk_.on() || token_.on(); }
  Index tile_rows() const { return simd::kTileRows; }

  void make_queries(const float* query, float scale) {
    if (chunk_.on()) return chunk_.make_queries(query, scale);
    token_.make_queries(query, scale);
  }
  template <class... Arguments>
  void logits(const Arguments&... arguments) const {
    if (chunk_.on()) return chunk_.logits(arguments...);
    token_.logits(arguments...);
  }
  template <class... Arguments>
  void values(const Arguments&... arguments) const {
    if (chunk_.on()) return chunk_.values(arguments...);
    token_.values(arguments...);
  }

 private:
  Chunk chunk_;
  Token token_;
};

/// The part of a request that tile registers do, where there are some.
template <class Key, class Value, class Tiles = simd::Tiles>
using TiledAttention = std::conditional_t<Codec<Key>::scaled, TiledBytes<Key, Value, Tiles>,
                                          Tiled16Bits<Key, Value, Tiles>>;

}  // namespace tersekv::detail
