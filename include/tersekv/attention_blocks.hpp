// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "tersekv/asked_lines.hpp"
#include "tersekv/config.hpp"
#include "tersekv/simd.hpp"
#include "tersekv/simd_spread.hpp"

// The inner loops of attention: a few query rows against a page's keys or values, as many as the
// register file holds sums for.

namespace tersekv::detail {

/// Rows of sums, and vectors of sums in all, that the register file holds.
inline constexpr int kMostRowBlock = 4, kRowBlock = simd::kLanes == 16 ? kMostRowBlock : 2;
inline constexpr int kSumBlock = simd::kLanes == 16 ? 16 : 8;

/// Calls f.template operator()<N>() for the N in [1, Max] that equals n.
template <int Max, class F>
inline void with_constant(Index n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, f);
  }
  f.template operator()<Max>();
}

/// Vectors of a page's entries, and of a row of sums, come in multiples of this.
inline constexpr int kLeastRun = simd::kMostLanes / simd::kLanes;

/// Calls f.template operator()<N>(at) for runs of N = Max, Max / 2, ... vectors that cover [0, n),
/// a multiple of kLeastRun.
template <int Max, class F>
inline void for_runs(Index n, F&& f, Index at = 0) {
  for (; at + Max <= n; at += Max) f.template operator()<Max>(at);
  if constexpr (Max > 1 && Max > kLeastRun) for_runs<Max / 2>(n, f, at);
}

/// Dimensions whose products are added up before they join the rest of a logit, for precision.
inline constexpr Index kKeyRun = 32;

/// Vectors of entries whose logits are worked out together.
inline constexpr int kKeyVectors = kSumBlock / kRowBlock;

/// How a block of `rows` query rows asks for elements T that are read next. From memory it disturbs
/// the prefetching of AMD's processors up to Zen 4, which goes on by itself unless much is done in
/// between, and then bytes come sooner from lines apart; others' leaves waits. A single row needs
/// so little time for a line that from memory lines apart push each other out of the first level.
/// From caches a Zen 4 is asked into the second level, too: short heads of several layers are no
/// nearer. Programs whose vectors have four lanes ask so wherever they read: a second way costs
/// more to compile than it gains.
template <class T>
constexpr simd::Ask ask_of(Index rows, bool from_memory) {
  constexpr bool bytes = sizeof(T) == 1;
  if (simd::kZen == 4) {
    if (from_memory && bytes) return rows >= 3 ? simd::Ask::apart : simd::Ask::nothing;
    return !from_memory || rows >= 4 ? simd::Ask::far : simd::Ask::nothing;
  }
  if (simd::kAsksFar && simd::kLanes == 4) return simd::Ask::far;
  if (!from_memory || !simd::kAsksFar) return simd::Ask::near;
  return simd::kAsksApart && rows > 1 ? simd::Ask::apart : simd::Ask::far;
}

/// The same for keys and values: as for values, but lines apart are those of both.
template <class Key, class Value>
constexpr simd::Ask ask_of_both(Index rows, bool from_memory) {
  const simd::Ask keys = ask_of<Key>(rows, from_memory), values = ask_of<Value>(rows, from_memory);
  return values == simd::Ask::apart && keys != values ? simd::Ask::far : values;
}

/// Calls f.template operator()<ask>() with memory or caches for ask.
template <simd::Ask memory, simd::Ask caches, class F>
inline void with_ask(bool from_memory, F&& f) {
  if constexpr (memory != caches) {
    if (from_memory) return f.template operator()<memory>();
  }
  f.template operator()<caches>();
}

/// What is asked for so many bytes before it is read is still in the first-level cache then.
inline constexpr Index kAskedBytes = simd::kSkylake ? 4096 : 16384;
/// In which order a page's keys or its values are read, `rows` rows of `row_bytes` bytes: all of
/// `at_once` rows, a whole number of runs, come before others, and are asked for when those are
/// read that come `lead` rows before them.
struct ReadingOrder {
  Index at_once = 0, lead = 0;
  bool memory = false;  ///< a guess

  /// Memory gives most if it is asked for half a page, or a page where that is little, at a time;
  /// far, if a page before.
  static ReadingOrder from_memory(Index rows, Index row_bytes, bool far) {
    const Index page = rows * row_bytes, few = kAskedBytes * 3 / 4;
    const Index at_once = page <= few ? rows : in_runs(rows, page / 2, row_bytes);
    return {at_once, far ? rows : at_once, true};
  }
  /// What a single query row reads from caches may be asked for a page ahead.
  static ReadingOrder from_caches(Index rows, Index row_bytes, bool one_query_row) {
    const Index at_once = in_runs(rows, kAskedBytes, row_bytes);
    return {at_once, one_query_row ? rows : at_once};
  }

 private:
  static Index in_runs(Index rows, Index bytes, Index row_bytes) {
    const Index asked = std::min(bytes, kAskedBytes) / row_bytes;
    return std::min(rows, std::max(asked / kKeyRun * kKeyRun, kKeyRun));
  }
};

/// What is read after a block's rows and asked for by it: as many rows, in the order in which they
/// are read, or the lines.
template <class T>
struct Ahead {
  const T* rows = nullptr;
  AskedLines lines = {};

  /// For a block that begins with column `column` of such rows, after `bytes` bytes have been read.
  Ahead from(Index column, Index bytes) const { return {rows + column, lines.after(bytes)}; }
  /// What asks for nothing but what is there.
  static Ahead none(const T* here) { return {here, AskedLines(here)}; }

  /// Lines of a row of Vectors vectors, and rows that fill whole requests together: a loop that
  /// takes so many at a time need not ask itself whether to ask.
  template <int Vectors>
  static constexpr int kLines = std::max(1, Vectors* simd::kLanes* static_cast<int>(sizeof(T)) /
                                                int{AskedLines::kLine});
  template <simd::Ask ask, int Vectors>
  static constexpr int kRows = ask == simd::Ask::apart
                                   ? std::max(1, AskedLines::kPlaces / kLines<Vectors>)
                                   : 1;

  /// A line of floats is done with so soon that lines of four places push each other out of the
  /// first level.
  static constexpr int kLocality = sizeof(T) == sizeof(float) ? 2 : AskedLines::kLocality;

  /// At rows [row, row + Rows) of Vectors vectors each, `row_size` elements apart.
  template <simd::Ask ask, int Vectors, int Rows = 1>
  [[gnu::always_inline]] void ask_for(Index row, Index row_size) const {
    if constexpr (ask == simd::Ask::apart) {
      lines.template ask<Rows * kLines<Vectors>, kLocality>(row / Rows);
    } else {
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        simd::prefetch<ask, Vectors>(rows + (row + r) * row_size);
      }
    }
  }
};

/// Calls f.template operator()<ask>() with how Rows query rows ask for what lies ahead: far, where
/// that is no lines.
template <int Rows, class T, class F>
inline void with_ask_of(bool from_memory, const Ahead<T>& ahead, F&& f) {
  constexpr simd::Ask memory = ask_of<T>(Rows, true), caches = ask_of<T>(Rows, false);
  if constexpr (memory == simd::Ask::apart && !simd::kAsksApart) {
    if (from_memory && !ahead.lines.any()) return f.template operator()<simd::Ask::far>();
  }
  with_ask<memory, caches>(from_memory, f);
}

/// Row `row` of those at `rows`, or after `count` of them of those at `ahead`.
template <class T>
const T* row_later(const T* rows, const T* ahead, Index count, Index row_size, Index row) {
  return row < count ? rows + row * row_size : ahead + (row - count) * row_size;
}

/// Of a block of a page's logits: Rows query rows against Vectors * kLanes entries. What is read
/// `lead` dimensions later may be asked for: of these keys, or then from `ahead` on. Never inlined:
/// with several blocks in a function g++ keeps the pointers of some loops in vector registers.
template <int Rows, int Vectors, simd::Ask ask, class Key>
[[gnu::noinline]] void key_block(const Key* keys, const Ahead<Key>& ahead, Index lead,
                                 Index page_size, Index head_dim, const float* rows,
                                 Index row_stride, float scale, float* out, Index out_stride) {
  for (Index start = 0; start < head_dim; start += kKeyRun) {
    const Index end = std::min(start + kKeyRun, head_dim);
    const Index asked_before = start * Ahead<Key>::template kLines<Vectors> * AskedLines::kLine;
    const Ahead<Key> asked{row_later(keys, ahead.rows, head_dim, page_size, start + lead),
                           ahead.lines.after(asked_before)};
    simd::Floats sums[std::size_t{Rows}][std::size_t{Vectors}] = {};
    const auto add = [&](Index j) __attribute__((always_inline)) {
      simd::Floats k[std::size_t{Vectors}];
      simd::load_spread<Vectors>(keys + j * page_size, k);
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Floats q = simd::broadcast(rows[r * row_stride + j]);
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          sums[r][v] = simd::keep_order(sums[r][v] + q * k[v]);
        }
      }
    };
    constexpr bool pairs = std::is_same_v<Key, BFloat16>;  // as simd::add_pairs does
    constexpr int at_once = std::max(pairs ? 2 : 1, Ahead<Key>::template kRows<ask, Vectors>);
    Index j = start;
    for (; j + at_once <= end; j += at_once) {
      asked.template ask_for<ask, Vectors, at_once>(j - start, page_size);
      TERSEKV_HOST_UNROLL for (int i = 0; i < at_once; ++i) add(j + (pairs ? i ^ 1 : i));
    }
    if constexpr (at_once > 2 && pairs) {
      for (; j + 2 <= end; j += 2) {
        add(j + 1);
        add(j);
      }
    }
    if constexpr (at_once > 1) {
      for (; j < end; ++j) add(j);
    }
    // A sum before a product: fused or not, a product before a sum would round in two ways, and a
    // row's logits not be the same bits in every block.
    const simd::Floats unit = simd::broadcast(end == head_dim ? scale : 1.0f);
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      simd::in_order<Vectors, Key>(sums[r]);
      TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
        float* logits = out + r * out_stride + v * simd::kLanes;
        const simd::Floats so_far = start == 0 ? simd::Floats{} : simd::load(logits);
        simd::store(logits, (so_far + sums[r][v]) * unit);
      }
    }
  }
}

/// out[r, i] = scale * <rows[r], key i> for the first `vectors` * kLanes entries at `keys`, of a
/// page of `page_size`. `ahead` is what will be read later, as much of it, and asked for as `order`
/// says.
template <class Key>
void key_tile(const Key* keys, const Ahead<Key>& ahead, const ReadingOrder& order, Index page_size,
              Index head_dim, Index vectors, const float* rows, Index num_rows, float scale,
              float* out, Index out_stride) {
  for (Index r = 0; r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      with_ask_of<Rows>(order.memory, ahead, [&]<simd::Ask ask>() {
        for_runs<kKeyVectors>(vectors, [&]<int Vectors>(Index v) {
          const Index at = v * simd::kLanes;
          const Ahead<Key> asked = r == 0 ? ahead : Ahead<Key>::none(keys);
          const Index read = at * head_dim * Index{sizeof(Key)};
          key_block<Rows, Vectors, ask>(keys + at, asked.from(at, read), order.lead, page_size,
                                        head_dim, rows + r * head_dim, head_dim, scale,
                                        out + r * out_stride + at, out_stride);
        });
      });
    });
  }
}

/// Entries whose values lie one after the other, and what lies as far into what is read later.
template <class Value>
struct ValueRun {
  const Value* values = nullptr;
  Ahead<Value> ahead;
  Index entries = 0;
};

/// sums[r, d] = factors[r] * sums[r, d] + sum_i weights[r, i] * values[i, d] over the entries of
/// `count` runs, for Rows rows and the Vectors * kLanes columns from `column` on; null factors are
/// 1. What lies ahead is asked for. Of each entry, `rest` more bytes are read: where nothing is
/// asked for, so that memory is read in order, else 0. Sums go on from what they were, entry by
/// entry: the same bits whatever the runs.
template <int Rows, int Vectors, simd::Ask ask, class Value>
#if !defined(__AVX__)
[[gnu::noinline]]  // with four lanes g++ runs out of registers for it inside another function
#endif
inline void
value_block(const ValueRun<Value>* runs, Index count, Index column, Index head_dim, Index rest,
            const float* weights, Index weight_stride, const float* factors, float* sums,
            Index sum_stride) {
  simd::Floats total[std::size_t{Rows}][std::size_t{Vectors}];
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    const simd::Floats factor = simd::broadcast(factors == nullptr ? 1.0f : factors[r]);
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      total[r][v] = simd::load(sums + r * sum_stride + column + v * simd::kLanes) * factor;
    }
    simd::spread<Vectors, Value>(total[r]);
  }
  for (Index run = 0; run < count; ++run) {
    const Value* values = runs[run].values + column;
    const Index entries = runs[run].entries;
    const Ahead<Value> ahead =
        runs[run].ahead.from(column, column * entries * Index{sizeof(Value)});
    const auto add = [&](Index i) __attribute__((always_inline)) {
      simd::Floats row[std::size_t{Vectors}];
      simd::load_spread<Vectors>(values + i * head_dim, row);
      if constexpr (ask == simd::Ask::nothing) {
        simd::touch_some<4>(values + i * head_dim + Vectors * simd::kLanes, rest);
      }
      TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
        const simd::Floats w = simd::broadcast(weights[r * weight_stride + i]);
        TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
          total[r][v] = simd::keep_order(total[r][v] + w * row[v]);
        }
      }
    };
    constexpr int at_once = Ahead<Value>::template kRows<ask, Vectors>;
    Index i = 0;
    for (; i + at_once <= entries; i += at_once) {
      ahead.template ask_for<ask, Vectors, at_once>(i, head_dim);
      TERSEKV_HOST_UNROLL for (int k = 0; k < at_once; ++k) add(i + k);
    }
    if constexpr (at_once > 1) {
      for (; i < entries; ++i) add(i);
    }
    weights += entries;
  }
  TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
    simd::in_order<Vectors, Value>(total[r]);
    TERSEKV_HOST_UNROLL for (int v = 0; v < Vectors; ++v) {
      simd::store(sums + r * sum_stride + column + v * simd::kLanes, total[r][v]);
    }
  }
}

/// The same for `num_rows` rows and all columns, in whole vectors: sums has room for them.
template <class Value>
[[gnu::noinline]] void value_tile(const ValueRun<Value>* runs, Index count, bool from_memory,
                                  Index head_dim, const float* weights, Index num_rows,
                                  Index weight_stride, const float* factors, float* sums,
                                  Index sum_stride) {
  const Index vectors = padded_dim(head_dim) / simd::kLanes;
  for (Index r = 0; r < num_rows; r += kRowBlock) {
    with_constant<kRowBlock>(std::min<Index>(kRowBlock, num_rows - r), [&]<int Rows>() {
      constexpr int most = std::min(Rows > 2 ? 4 : 8, kSumBlock / Rows);
      // What takes several blocks of columns is read run by run, as it is asked for.
      const Index at_once = vectors <= most ? count : 1;
      const float *shares = weights + r * weight_stride, *factor = factors;
      if (factor != nullptr) factor += r;
      for (Index run = 0; run < count; run += at_once) {
        with_ask_of<Rows>(from_memory, runs->ahead, [&]<simd::Ask ask>() {
          for_runs<most>(vectors, [&]<int Vectors>(Index v) {
            const Index column = v * simd::kLanes;
            const Index after = head_dim - column - Vectors * simd::kLanes;
            const Index rest =
                ask == simd::Ask::nothing && r == 0 && v == 0 ? after * Index{sizeof(Value)} : 0;
            value_block<Rows, Vectors, ask>(runs + run, at_once, column, head_dim, rest, shares,
                                            weight_stride, factor, sums + r * sum_stride,
                                            sum_stride);
          });
        });
        shares += runs[run].entries;
        factor = nullptr;
      }
    });
  }
}

}  // namespace tersekv::detail
