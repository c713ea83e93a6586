// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// Borrowed [tokens, heads, head_dim] with strides in elements, so that every layout an engine may
/// use is read in place: rows of all heads, head-major, K and V interleaved in one row.
template <class T>
struct TokenView {
  T* data = nullptr;
  Index tokens = 0, heads = 0, head_dim = 0;
  Index token_stride = 0, head_stride = 0, dim_stride = 1;

  TERSEKV_HD T& operator()(Index token, Index head, Index dim) const {
    return data[token * token_stride + head * head_stride + dim * dim_stride];
  }
  /// f(element), with element(dim) one of a row's. Those that lie side by side, as they mostly do,
  /// come with a stride that the compiler knows, so that loops over them become vectors.
  template <class F>
  void with_row(Index token, Index head, F&& f) const {
    T* row = &(*this)(token, head, 0);
    const auto go = [&](auto stride) { f([=](Index j) -> T& { return row[j * stride]; }); };
    dim_stride == 1 ? go(std::integral_constant<Index, 1>{}) : go(dim_stride);
  }
  /// f(element, dim) for the elements of a row.
  template <class F>
  void for_each_element(Index token, Index head, F&& f) const {
    with_row(token, head, [&](auto element) {
      for (Index j = 0; j < head_dim; ++j) f(element(j), j);
    });
  }
  /// Tokens [first, first + count).
  TokenView rows(Index first, Index count) const {
    TokenView part = *this;
    part.data = data == nullptr ? nullptr : data + first * token_stride;
    part.tokens = count;
    return part;
  }
  template <class U>
  operator TokenView<U>() const  // NOLINT: implicit like T* to const T*
      requires(!std::is_const_v<T> && std::is_same_v<U, const T>) {
    return {data, tokens, heads, head_dim, token_stride, head_stride, dim_stride};
  }
};

/// Contiguous [tokens, heads, head_dim]: what a projection writes.
template <class T>
TokenView<T> nhd_view(T* data, Index tokens, Index heads, Index head_dim) {
  return {data, tokens, heads, head_dim, heads * head_dim, head_dim, 1};
}

/// Contiguous [heads, tokens, head_dim].
template <class T>
TokenView<T> hnd_view(T* data, Index tokens, Index heads, Index head_dim) {
  return {data, tokens, heads, head_dim, head_dim, tokens * head_dim, 1};
}

/// Borrowed [tokens, kv_heads] predicted importance of new tokens (KVzap's surrogate). Contiguous
/// scores have token_stride = kv_heads.
struct ScoreView {
  const float* data = nullptr;
  Index token_stride = 0, head_stride = 1;
  TERSEKV_HD float operator()(Index token, Index head) const {
    return data[token * token_stride + head * head_stride];
  }
  /// From token `first` on.
  ScoreView rows(Index first) const {
    return {data == nullptr ? nullptr : data + first * token_stride, token_stride, head_stride};
  }
};

/// Borrowed attention rows of the last `rows` queries of a sequence, one block per KV head: element
/// (row, kv_head, slot) is softmax(scale <q, k> + alpha ln w), reduced over the query heads of the
/// group as `CacheConfig::group_reduce` says. Row r saw the first `length - (rows - 1 - r)` slots
/// of each head; what lies beyond is neither read nor written. Slots are in storage order, the
/// order in which `KVCache::attend` writes them and `KVCache::head` shows them. Every row has room
/// for the longest head: rows and heads are at least max `KVCache::length` apart.
template <class T>
struct AttentionRows {
  T* data = nullptr;
  Index rows = 0;
  Index row_stride = 0, head_stride = 0;
  TERSEKV_HD T* row(Index index, Index kv_head) const {
    return data + index * row_stride + kv_head * head_stride;
  }
  template <class U>
  operator AttentionRows<U>() const  // NOLINT: implicit like T* to const T*
      requires(!std::is_const_v<T> && std::is_same_v<U, const T>) {
    return {data, rows, row_stride, head_stride};
  }
};

}  // namespace tersekv
