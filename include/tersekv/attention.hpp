// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "tersekv/attention_blocks.hpp"
#include "tersekv/attention_bytes.hpp"
#include "tersekv/attention_pairs.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/attention_sums.hpp"
#include "tersekv/attention_tiles.hpp"
#include "tersekv/config.hpp"
#include "tersekv/entry_attention.hpp"
#include "tersekv/head.hpp"
#include "tersekv/merge_states.hpp"
#include "tersekv/pages_ahead.hpp"
#include "tersekv/running_softmax.hpp"
#include "tersekv/simd_math.hpp"
#include "tersekv/tile_weights.hpp"

namespace tersekv {

namespace detail {

/// The tiles of one request: entries whose keys come first, then their exponentials, then their
/// values. Of heads that may be in memory, and for tile registers, they are no more than a page, in
/// the order of memory: a page's keys, its scales and weights, its values, and what is not wanted,
/// so that the processor's own prefetching, which stops at the first gap, goes on for as long as
/// pages are neighbours. Elsewhere a section: each time the exponentials are waited for.
template <class Head>
class AttentionPass {
  using Key = typename Head::Key;
  using Value = typename Head::Value;
  static constexpr bool kPairs = simd::kFastPairs && std::is_same_v<Key, BFloat16>;
  static constexpr bool kBytes = Codec<Key>::scaled && Codec<Value>::scaled;
  /// Of what is asked for far, so many bytes before a softmax: memory would else have nothing to
  /// do.
  static constexpr Index kAskedMeanwhile = 2048;

 public:
  AttentionPass(const Head& head, const AttentionRequest& request, const AttentionBuffers& buffers)
      : head_(head),
        request_(request),
        buffers_(buffers),
        group_(head.shape().group_size),
        rows_(request.tokens * group_),
        dim_(head.head_dim()),
        row_floats_(padded_dim(dim_)),
        block_(block_entries(head.page_size())),
        tiled_(request, rows_, dim_, block_, buffers),
        from_memory_(request.tokens == 1 &&
                     (tiled_.on() || is_far<Key, Value>(request.visible, dim_, block_, rows_))),
        tile_(request.tokens == 1 && !from_memory_ ? kSection : block_),
        ask_(ask_of_both<Key, Value>(std::min<Index>(rows_, kRowBlock), from_memory_)),
        key_order_(
            order(dim_, std::min<Index>(block_, kKeyVectors * simd::kLanes) * Index{sizeof(Key)})),
        value_order_(order(block_, dim_ * Index{sizeof(Value)})),
        pages_ahead_(head, request.visible, request.out == nullptr),
        tile_shift_(std::countr_zero(static_cast<std::uint64_t>(tile_))),
        kept_(request.attention != nullptr),
        section_(own_sums(1)),
        total_(own_sums(0)),
        softmax_(buffers.softmax, section_) {}

  /// All of the request by one worker.
  void run() {
    const simd::TileSetup setup(tiled_.on(), simd::kTileBytes, tiled_.tile_rows());
    make_queries();
    section_ = total_;  // what joins nothing is the total
    section(0);
    section_ = own_sums(1);
    for (Index s = 1; s < sections_of(request_.visible); ++s) {
      section(s);
      total_.add(section_);
    }
    finish();
  }
  /// Sections [first, last), into the buffers that workers share.
  void part(Index first, Index last) {
    const simd::TileSetup setup(tiled_.on(), simd::kTileBytes, tiled_.tile_rows());
    make_queries();
    for (Index s = first; s < last; ++s) {
      section_ = shared_sums(s);
      section(s);
    }
  }
  /// The request, after all of its sections.
  void join() {
    total_ = shared_sums(0);
    for (Index s = 1; s < sections_of(request_.visible); ++s) total_.add(shared_sums(s));
    finish();
  }

 private:
  ReadingOrder order(Index rows, Index row_bytes) const {
    if (from_memory_) return ReadingOrder::from_memory(rows, row_bytes, asks_far());
    return ReadingOrder::from_caches(rows, row_bytes, rows_ == 1);
  }
  AttentionSums sums(float* memory) const {
    return {memory, rows_, request_.out != nullptr ? row_floats_ : 0};
  }
  /// The worker's: 0 or 1.
  AttentionSums own_sums(Index which) const {
    return sums(buffers_.sums + which * AttentionSums::floats(rows_, row_floats_));
  }
  AttentionSums shared_sums(Index section) const {
    return sums(buffers_.shared.sections + section * AttentionSums::floats(rows_, row_floats_));
  }
  /// The query rows as the keys' type wants them.
  [[gnu::noinline]] void make_queries() {
    if (tiled_.on()) return tiled_.make_queries(request_.query, scale());
    if constexpr (kPairs) {
      if (make_pairs(request_.query, rows_, dim_, buffers_.pairs)) pairs_ = buffers_.pairs;
    } else if constexpr (Codec<Key>::scaled) {
      byte_queries_ = {buffers_.byte_queries, buffers_.byte_units, row_floats_};
      for (Index r = 0; r < rows_; ++r) {
        make_byte_row(request_.query + r * dim_, dim_, scale(),
                      buffers_.byte_queries + r * row_floats_,
                      buffers_.byte_units + r * ByteRows::kUnits);
      }
    }
  }

  /// Never inlined, nor are `finish` and `make_queries`: see HeadWorker.
  [[gnu::noinline]] void section(Index index) {
    softmax_.start(section_);
    const Index end = std::min((index + 1) * kSection, request_.visible);
    for (Index start = index * kSection; start < end; start += tile_) {
      const Index stop = std::min(start + tile_, end);
      // Rows of tokens that came before this tile's entries see none of it.
      const Index blind = std::max<Index>(start + request_.tokens - request_.visible, 0) * group_;
      for (Index at = start; at < stop; at += block_) {
        logits(at, std::min(block_, stop - at), blind, after_keys(at, start, stop));
      }
      softmax(start, stop - start, blind,
              tile_weights(head_, request_.alpha, start, stop, buffers_.weights));
      if (request_.out != nullptr) values(start, stop, blind);
    }
    softmax_.finish();
  }

  /// What is read after the keys of the block at `at`, of the tile [start, stop), and is asked for
  /// by then.
  const Key* after_keys(Index at, Index start, Index stop) const {
    if (at + block_ < stop) return keys_at(at + block_);
    if (request_.out != nullptr && !asks_a_page_on()) {
      return reinterpret_cast<const Key*>(values_at(start));
    }
    return keys_at(stop < request_.visible ? stop : at);
  }
  const Value* after_values(Index at, Index stop) const {
    if (at + block_ < stop) return values_at(at + block_);
    if (stop == request_.visible) return values_at(at);
    if (asks_far()) return values_at(stop) + kAskedMeanwhile / Index{sizeof(Value)};
    return asks_a_page_on() ? values_at(stop) : reinterpret_cast<const Value*>(keys_at(stop));
  }
  /// What is asked for far, or what is so few bytes that those which come next would be asked for
  /// late: the next page's keys along with the keys, and its values along with the values.
  bool asks_a_page_on() const {
    const bool few_bytes = kBytes && rows_ > 1 && 2 * block_ * dim_ <= kAskedBytes;
    return asks_far() || (!simd::kAsksApart && from_memory_ && few_bytes);
  }
  /// What may be in memory, a page ahead; sections are asked for in the order in which they are
  /// read.
  bool asks_far() const { return ask_ == simd::Ask::far && from_memory_; }
  bool asks_apart() const { return ask_ == simd::Ask::apart; }
  /// From the third level they come while exponentials are worked out; from memory a call gains
  /// nothing.
  bool asks_for_columns() const {
    return simd::kAsksApart && kept_ && head_.num_statistics() > 0 &&
           request_.visible >= kFarEntries && request_.visible < kMemoryEntries;
  }
  /// What is asked for along with the keys at `start`, and with the values: as much from `ahead`
  /// on, or lines of pages that come later.
  Ahead<Key> with_keys(Index start, const Key* ahead) const {
    if (!asks_apart()) return {ahead};
    return {ahead, pages_ahead_.with_keys(start)};
  }
  Ahead<Value> with_values(Index start, const Value* ahead) const {
    if (!asks_apart()) return {ahead};
    return {ahead, pages_ahead_.with_values(start)};
  }

  /// What makes logits of products: those of powers of two.
  float scale() const { return head_.shape().scale * simd::kLog2e; }
  Index last_page() const { return head_.page_index(request_.visible - 1); }
  Index tile_of(Index start) const { return start >> tile_shift_; }
  Index seen(Index row) const {
    if (request_.tokens == 1) return request_.visible;
    return request_.visible - (request_.tokens - 1 - row / group_);
  }
  const Key* keys_at(Index start) const {
    return head_.key_page(head_.page_index(start)) + head_.in_page(start) * Codec<Key>::pack;
  }
  const Value* values_at(Index start) const {
    return head_.value_page(head_.page_index(start)) + head_.in_page(start) * dim_;
  }
  /// Null where there are none.
  const float* key_scales(Index start) const {
    if constexpr (!Codec<Key>::scaled)
      return nullptr;
    else
      return head_.key_scale_page(head_.page_index(start)) + head_.in_page(start);
  }
  const float* value_scales(Index start) const {
    if constexpr (!Codec<Value>::scaled)
      return nullptr;
    else
      return head_.value_scale_page(head_.page_index(start)) + head_.in_page(start);
  }
  /// Logits of row r from `start` on; those of the next row lie a tile further.
  float* row_of(Index r, Index start) const {
    return kept_ ? buffers_.shared.kept + tile_of(start) * group_ * tile_ + in_tile(r, start)
                 : buffers_.tile + in_tile(r, start);
  }
  Index in_tile(Index r, Index start) const { return r * tile_ + (start & (tile_ - 1)); }

  /// Of the block at `start`; `ahead` is what is read next.
  void logits(Index start, Index entries, Index blind, const Key* ahead) {
    const Index page = head_.page_size(), vectors = padded_dim(entries) / simd::kLanes;
    const Index index = head_.page_index(start), place = head_.in_page(start);
    float* out = row_of(blind, start);
    if (ask_ != simd::Ask::nothing && !asks_apart() && request_.visible >= kFarEntries &&
        place == 0 && index < last_page()) {
      head_.ask_for_scales(index + 1);
    }
    const Ahead<Key> asked = with_keys(start, ahead);
    if (tiled_.on()) {
      tiled_.logits(keys_at(start), asked, from_memory_, key_scales(start), page, entries, blind,
                    row_of(0, start), tile_);
    } else if constexpr (Codec<Key>::scaled) {
      byte_key_tile(keys_at(start), asked, from_memory_, page, dim_, vectors,
                    byte_queries_.from(blind), rows_ - blind, key_scales(start), false, out, tile_);
    } else if constexpr (kPairs) {
      pair_tile(keys_at(start), asked, key_order_, page, dim_, vectors,
                request_.query + blind * dim_,
                pairs_ == nullptr ? nullptr : pairs_ + blind * dim_ / 2, rows_ - blind, scale(),
                out, tile_);
    } else {
      key_tile(keys_at(start), asked, key_order_, page, dim_, vectors,
               request_.query + blind * dim_, rows_ - blind, scale(), out, tile_);
    }
    if (request_.logits == nullptr) return;
    for (Index g = 0; g < group_; ++g) {
      const float* row = row_of(g, start);
      float* to = request_.logits + g * buffers_.shared.stride + start;
      for (Index i = 0; i < vectors * simd::kLanes; i += simd::kLanes) {
        simd::store(to + i, simd::load(row + i) * simd::kLn2);
      }
    }
  }

  void softmax(Index start, Index entries, Index blind, const TileWeights& weights) {
    ask_for_next_head(start, entries);
    if (asks_far() && request_.out != nullptr && start + entries < request_.visible) {
      simd::ask<2>(values_at(start + entries), kAskedMeanwhile);
    }
    if (asks_apart() && head_.in_page(start) == 0) {
      pages_ahead_.ask_for_rest(start);
      if (asks_for_columns()) head_.ask_for_columns_later(head_.page_index(start));
    }
    if (seen(blind) - start >= entries) {
      softmax_.add(blind, rows_, row_of(blind, start), tile_, entries, entries, weights);
    } else {
      for (Index r = blind; r < rows_; ++r) {
        const Index visible = std::min(entries, seen(r) - start);
        softmax_.add(r, r + 1, row_of(r, start), tile_, visible, entries, weights);
      }
    }
    if (!kept_) return;
    float* powers = buffers_.shared.powers + tile_of(start) * group_;
    for (Index g = 0; g < group_; ++g) powers[g] = section_.power(g);
  }

  /// Asks, where a block or more of a short head is left to do, for what memory can bring until the
  /// policy has done its work, too: the first keys of the next head, as many bytes as an eighth of
  /// its own. (Where that was timed; of larger pages a section's keys are no first bytes.)
  void ask_for_next_head(Index start, Index entries) const {
    if (simd::kZen != 4 || request_.visible >= kFarEntries || head_.page_size() > kSection) return;
    if (!holds_last_block(start, entries, request_.visible, block_)) return;
    const Index key_bytes = dim_ * Index{sizeof(Key)};
    for_first_bytes(request_.next_pages, std::min(request_.visible * key_bytes / 8, kAskedBytes),
                    from_memory_ ? pages_ahead_.page_bytes() : head_.page_size() * key_bytes,
                    [](const void* memory, Index bytes) { simd::ask<2>(memory, bytes); });
  }

  /// Of the tile [start, stop).
  void values(Index start, Index stop, Index blind) {
    const float* factors = softmax_.factors() + blind;
    if (tiled_.on()) {
      tiled_.values(values_at(start), with_values(start, after_values(start, stop)), from_memory_,
                    value_scales(start), stop - start, row_of(0, start), tile_, blind,
                    softmax_.factors(), section_.values(0), row_floats_);
    } else if constexpr (Codec<Value>::scaled) {
      for (Index at = start; at < stop; at += block_, factors = nullptr) {
        const Index entries = std::min(block_, stop - at);
        make_byte_shares(value_scales(at), at, entries, blind);
        byte_value_tile(values_at(at), with_values(at, after_values(at, stop)), from_memory_, dim_,
                        entries, buffers_.tile + in_tile(blind, at), rows_ - blind, tile_,
                        buffers_.share_units + blind, factors, section_.values(blind), row_floats_);
      }
    } else {
      ValueRun<Value> runs[std::size_t{kSection / simd::kMostLanes}];
      Index count = 0;
      for (Index at = start; at < stop; at += block_) {
        const Value* here = values_at(at);
        const Index entries = std::min(block_, stop - at);
        const Ahead<Value> ahead = with_values(at, after_values(at, stop));
        for (Index i = 0; i < entries; i += value_order_.at_once) {
          const Value* later = row_later(here, ahead.rows, entries, dim_, i + value_order_.lead);
          runs[count++] = {here + i * dim_,
                           {later, ahead.lines.after(i * dim_ * Index{sizeof(Value)})},
                           std::min(value_order_.at_once, entries - i)};
        }
      }
      value_tile(runs, count, from_memory_, dim_, row_of(blind, start), rows_ - blind, tile_,
                 factors, section_.values(blind), row_floats_);
    }
    const Index page = head_.page_index(start);
    const bool ends_page = page < last_page() && head_.in_page(stop) == 0;
    if (from_memory_ && !asks_apart() && ends_page) head_.read_on(page);
  }

  /// Exponentials times the scales of their values, in digits, into the tile: those that are kept
  /// stay.
  void make_byte_shares(const float* scales, Index start, Index entries, Index blind) {
    const Index padded = padded_dim(entries);
    for (Index r = blind; r < rows_; ++r) {
      float* shares = buffers_.tile + in_tile(r, start);
      const float most = scaled_shares(row_of(r, start), scales, entries, padded, shares);
      buffers_.share_units[r] = to_unsigned_digits(shares, padded, most, shares);
    }
  }

  /// Output, normalisers and attention per entry, out of the sums over all entries.
  [[gnu::noinline]] void finish() {
    float* inverses = buffers_.softmax;  // which has done its work
    for (Index r = 0; r < rows_; ++r) {
      request_.lse[r] = total_.lse(r);
      inverses[r] = static_cast<float>(1.0 / total_.mass(r));
      if (request_.out == nullptr) continue;
      const float* values = total_.values(r);
      for (Index j = 0; j < dim_; ++j) request_.out[r * dim_ + j] = values[j] * inverses[r];
    }
    if (kept_) entry_attention(request_, buffers_.shared, tile_, total_, inverses);
  }

  const Head& head_;
  const AttentionRequest& request_;
  const AttentionBuffers& buffers_;
  Index group_, rows_, dim_, row_floats_;
  Index block_;  // entries that lie together
  TiledAttention<Key, Value> tiled_;
  bool from_memory_;  // a guess; and where tiles work on a token, who wait for caches, too
  Index tile_;        // entries of a tile: a block or several
  simd::Ask ask_;     // for what comes next
  ReadingOrder key_order_, value_order_;
  PagesAhead<Head> pages_ahead_;
  int tile_shift_;  // log2(tile_)
  bool kept_;
  AttentionSums section_, total_;
  RunningSoftmax softmax_;
  ByteRows byte_queries_;
  const float* pairs_ = nullptr;  // null where rows are none
};

}  // namespace detail

/// Compensated softmax attention of the rows of a few tokens:
///
///   l_gi = scale <q_g, k_i>,  a_gi = softmax_i(l_gi + alpha ln w_i),  o_g = sum_i a_gi v_i
///
/// with the natural-log normaliser lse_g = ln sum_i exp(l_gi + alpha ln w_i) and
/// A_i = reduce_g a_gi. One pass over keys and values; O(tokens group visible head_dim).
/// Accumulation in float with double normalisers, relative to a power of two near the highest
/// exponential so far, so logits of any size are safe. Precondition: visible >= tokens.
template <class Head>
void attend(const Head& head, const AttentionRequest& request, const AttentionBuffers& buffers) {
  detail::AttentionPass<Head>(head, request, buffers).run();
}

/// The same by several workers: each does some sections [first, last) of one token's request, with
/// its own buffers but for the shared ones; when all are done, one of them joins. The results are
/// those of `attend` to the bit.
template <class Head>
void attend_part(const Head& head, const AttentionRequest& request, const AttentionBuffers& buffers,
                 Index first, Index last) {
  detail::AttentionPass<Head>(head, request, buffers).part(first, last);
}
template <class Head>
void attend_join(const Head& head, const AttentionRequest& request,
                 const AttentionBuffers& buffers) {
  detail::AttentionPass<Head>(head, request, buffers).join();
}

}  // namespace tersekv
