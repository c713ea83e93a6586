// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tersekv/element.hpp"
#include "tersekv/tiled_bytes.hpp"
#include "tersekv/tiled_pieces.hpp"

namespace tersekv::detail {

/// The part of a request of many query rows that tile registers do, where there are some.
template <class Key, class Value, class Tiles = simd::Tiles>
using TiledAttention = std::conditional_t<Codec<Key>::scaled, TiledBytes<Key, Value, Tiles>,
                                          TiledPieces<Key, Value, Tiles>>;

}  // namespace tersekv::detail
