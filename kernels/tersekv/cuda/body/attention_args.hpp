// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tersekv/cuda/body/context.hpp"
#include "tersekv/cuda/body/heads.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/view.hpp"

namespace tersekv::cuda {

/// What both attention bodies are given. The grid is (splits, heads, tiles of query rows): query
/// row r of a head is token first_row + r / group of its sequence, query head r % group. Token t
/// sees the first length - (end_row - 1 - t) entries.
///
///   l_gi = scale <q_g, k_i>,  a_gi = softmax_i(l_gi + alpha ln w_i),  o_g = sum_i a_gi v_i
template <class KeyCodec, class ValueCodec, class T>
struct AttentionArgs {
  DeviceHeads<KeyCodec, ValueCodec> heads;
  TokenView<const T> q;  ///< tokens of all sequences of the launch, `rows` each
  TokenView<T> out;      ///< or null
  float* lse = nullptr;  ///< [tokens, num_q_heads] or null
  Index first_sequence = 0;
  Index rows = 0;       ///< tokens of a sequence in the views
  Index end_row = 0;    ///< tokens before this one have been appended
  Index first_row = 0;  ///< of this launch
  Index num_rows = 0;   ///< tokens of a sequence for this launch
  float alpha = 0.0f;
  int splits = 1;
  int least_tiles = 1;  ///< of a split
  Index tile = 0;       ///< entries of a tile, for those who join the splits
  /// Logits for the policy, or null; with the weights' bias or without. Row r of the launch is row
  /// r of the scratch.
  bool write_logits = false, biased = false;
  DeviceScratch scratch;
  /// Partial states of splits, where there are several: [heads, num_rows * group, splits(, dim)].
  float *part_out = nullptr, *part_max = nullptr, *part_sum = nullptr;
};

/// Which tiles of a head a split has: equal shares, but no less than `least` tiles. Also says how
/// many splits have any, which is what joins them must know.
struct SplitPlan {
  int tiles, per_split;
  TERSEKV_HD SplitPlan(Index entries, Index tile, int splits, int least) {
    // In 32 bits, as all divisions here: devices take long for those of 64.
    const int size = static_cast<int>(tile);
    tiles = (static_cast<int>(entries) + size - 1) / size;
    per_split = (tiles + splits - 1) / splits;
    if (per_split < least) per_split = least;
  }
  TERSEKV_HD int first(int split) const {
    const int at = split * per_split;
    return at < tiles ? at : tiles;
  }
  TERSEKV_HD int used() const { return (tiles + per_split - 1) / per_split; }
};

/// Two neighbours in one load.
template <class E>
struct alignas(2 * sizeof(E)) Pair {
  E first, second;
};
template <class E>
TERSEKV_HD Pair<E> load_pair(const E* at) {
  return *reinterpret_cast<const Pair<E>*>(at);
}

/// No logit is lower, and differences of two such still fit a float.
inline constexpr float kLowest = -1.5e38f;

/// Entries of a tile: as many as a slab of shared memory takes, of keys or of values.
template <class KeyCodec, class ValueCodec, int Dim>
inline constexpr int kTile = Dim* static_cast<int>(sizeof(KeyCodec) > sizeof(ValueCodec)
                                                       ? sizeof(KeyCodec)
                                                       : sizeof(ValueCodec)) > 512
                                 ? 32
                                 : 64;

/// A ring of slabs in shared memory through which tiles of keys and values stream in turns: slab 2t
/// holds the keys of tile t, [Dim, Tile], slab 2t + 1 its values, [Tile, Dim]. Rows are cut into
/// chunks of 16 bytes; with Swizzle, chunks of a row trade places, so that eight rows' chunks of
/// one column, which `load_transposed` reads, lie in different banks.
///
/// A thread copies chunks whose places differ by constants, so that next to nothing is worked out
/// for each: with a handful of warps on a multiprocessor, instructions are what takes long.
template <class KeyCodec, class ValueCodec, int Dim, int Threads, bool Swizzle>
class TileRing {
 public:
  static constexpr int kEntries = kTile<KeyCodec, ValueCodec, Dim>;
  static constexpr int kStages = 4;
  static constexpr int kKeyChunks = kEntries * static_cast<int>(sizeof(KeyCodec)) / 16;  // of a row
  static constexpr int kValueChunks = Dim * static_cast<int>(sizeof(ValueCodec)) / 16;
  static constexpr int kSlabBytes =
      16 *
      (Dim * kKeyChunks > kEntries * kValueChunks ? Dim * kKeyChunks : kEntries * kValueChunks);
  static constexpr int kBytes = kStages * kSlabBytes;
  static_assert(Dim * sizeof(ValueCodec) % 16 == 0, "rows of values are whole chunks");

  /// Byte of chunk c of row r of a slab of keys, or values.
  TERSEKV_HD static constexpr int key_at(int r, int c) {
    return 16 * (r * kKeyChunks + (c ^ swizzle(r, kKeyChunks)));
  }
  TERSEKV_HD static constexpr int value_at(int r, int c) {
    return 16 * (r * kValueChunks + (c ^ swizzle(r, kValueChunks)));
  }

  /// The tiles of `tiles` from entry `first_entry` of a head of `length` entries in `pages`.
  TERSEKV_HD TileRing(std::byte* memory, const PageLayout& layout, std::byte* const* pages,
                      int length, int first_entry, int tiles)
      : memory_(memory),
        layout_(layout),
        pages_(pages),
        length_(length),
        first_entry_(first_entry),
        tiles_(tiles) {}

  /// Starts the copies of the first slabs, and gives the page of the first tile, or null where
  /// there is none. All threads, before `stream`: what else a block needs first is asked for while
  /// these are on their way.
  template <class Context>
  TERSEKV_HD const std::byte* start(const Context& context) {
    const std::byte* first_page = page_of(0);
    of_values_ = page_of(1);
    of_keys_ = page_of(2);
    if (tiles_ > 0) load_keys(context, 0, first_page);
    context.commit();
    if (tiles_ > 0) load_values(context, 0, first_page);
    context.commit();
    if (tiles_ > 1) load_keys(context, 1, of_values_);
    context.commit();
    return first_page;
  }

  /// Streams the tiles past all threads: prepare(e, page of the next tile or null) while the keys
  /// of the tile from entry e are still on their way, on_keys(slab, e), then on_values(slab). A
  /// block's barrier lies before each of the last two.
  template <class Context, class Prepare, class OnKeys, class OnValues>
  TERSEKV_HD void stream(const Context& context, Prepare&& prepare, OnKeys&& on_keys,
                         OnValues&& on_values) {
    for (int t = 0; t < tiles_; ++t) {
      const int entry = entry_of(t);
      prepare(entry, of_values_);
      context.template wait<kStages - 2>();
      context.barrier();  // these keys are there, and all are done with the values before
      if (t + 1 < tiles_) load_values(context, t + 1, of_values_);
      context.commit();
      on_keys(slab(t, 0), entry);
      context.template wait<kStages - 2>();
      context.barrier();  // these values are there, and all are done with the keys
      if (t + 2 < tiles_) load_keys(context, t + 2, of_keys_);
      context.commit();
      of_values_ = of_keys_;
      of_keys_ = page_of(t + 3);
      on_values(slab(t, 1));
    }
    context.template wait<0>();
    context.barrier();
  }

 private:
  /// The banks take eight chunks. Rows of 8 chunks, or 16, begin in the same banks, so eight chunks
  /// trade places, by the row; rows of 4, or 12, do every second time, and four chunks do, by
  /// pairs of rows; rows of 10 every fourth.
  TERSEKV_HD static constexpr int swizzle(int r, int chunks) {
    if (!Swizzle) return 0;
    return chunks % 8 == 0   ? r & 7
           : chunks % 4 == 0 ? r >> 1 & 3
           : chunks % 2 == 0 ? r >> 2 & 1
                             : 0;
  }
  /// Row and column of the m-th chunk that a thread copies of rows of `Chunks`.
  template <int Chunks>
  TERSEKV_HD static constexpr unsigned row_of(unsigned thread, int m) {
    constexpr unsigned threads = Threads, chunks = Chunks;
    return threads % chunks == 0 ? thread / chunks + unsigned(m) * (threads / chunks)
                                 : (thread + unsigned(m) * threads) / chunks;
  }
  template <int Chunks>
  TERSEKV_HD static constexpr unsigned column_of(unsigned thread, int m) {
    constexpr unsigned threads = Threads, chunks = Chunks;
    return threads % chunks == 0 ? thread % chunks : (thread + unsigned(m) * threads) % chunks;
  }
  /// f(row, chunk) for every chunk of this thread, of `Rows` rows of `Chunks`.
  template <int Rows, int Chunks, class Context, class F>
  TERSEKV_HD static void for_chunks(const Context& context, F&& f) {
    const auto thread = static_cast<unsigned>(context.thread());
    constexpr int all = Rows * Chunks, turns = (all + Threads - 1) / Threads;
    TERSEKV_UNROLL_BY(8)  // more would cost registers
    for (int m = 0; m < turns; ++m) {
      const unsigned row = row_of<Chunks>(thread, m);
      if (all % Threads == 0 || m + 1 < turns || row < Rows) {
        f(row, column_of<Chunks>(thread, m));
      }
    }
  }

  TERSEKV_HD int entry_of(int tile) const { return first_entry_ + tile * kEntries; }
  TERSEKV_HD const std::byte* page_of(int tile) const {
    return tile < tiles_ ? pages_[entry_of(tile) >> layout_.shift] : nullptr;
  }
  TERSEKV_HD unsigned in_page(int tile) const {
    return static_cast<unsigned>(entry_of(tile)) & (static_cast<unsigned>(layout_.page_size) - 1);
  }
  TERSEKV_HD std::byte* slab(int tile, int values) const {
    return memory_ + (tile % (kStages / 2) * 2 + values) * kSlabBytes;
  }

  template <class Context>
  TERSEKV_HD void load_keys(const Context& context, int tile, const std::byte* page) const {
    const auto row_bytes = static_cast<unsigned>(layout_.page_size) * unsigned{sizeof(KeyCodec)};
    const std::byte* from = page + in_page(tile) * unsigned{sizeof(KeyCodec)};
    std::byte* to = slab(tile, 0);
    for_chunks<Dim, kKeyChunks>(context, [&](unsigned r, unsigned c) {
      context.copy16(to + key_at(static_cast<int>(r), static_cast<int>(c)),
                     from + 16 * c + std::uint64_t{r} * row_bytes);
    });
  }
  /// Values behind the last entry are zeros: whatever was there, an infinity perhaps, would meet
  /// weights of zero.
  template <class Context>
  TERSEKV_HD void load_values(const Context& context, int tile, const std::byte* page) const {
    const int left = length_ - entry_of(tile);
    const auto there = static_cast<unsigned>(left < kEntries ? left : kEntries);
    constexpr unsigned row_bytes = 16 * kValueChunks;
    const std::byte* from = page + layout_.values_at + in_page(tile) * row_bytes;
    std::byte* to = slab(tile, 1);
    for_chunks<kEntries, kValueChunks>(context, [&](unsigned r, unsigned c) {
      context.copy16(to + value_at(static_cast<int>(r), static_cast<int>(c)),
                     from + r * row_bytes + 16 * c, r < there);
    });
  }

  std::byte* memory_;
  const PageLayout& layout_;
  std::byte* const* pages_;  // of the head
  int length_;               // its entries: no head has 2^31
  int first_entry_, tiles_;
  // Of the tile whose values, and of the one whose keys, are copied next: asked for long before.
  const std::byte *of_values_ = nullptr, *of_keys_ = nullptr;
};

/// One block's part of the work: which head, rows and tiles.
template <class Args>
struct AttentionWork {
  int head;             ///< of the launch
  Index head_of_cache;  ///< its number in the store
  int kv_head, sequence_of_launch;
  int group, first_row, count;  ///< query rows [first_row, first_row + count)
  Index length;
  int first_tile, tiles;  ///< of this split

  /// `tile_rows` query rows and `tile` entries at a time.
  template <class Context>
  TERSEKV_HD AttentionWork(const Context& context, const Args& args, int tile_rows, int tile) {
    const Grid block = context.block();
    head = block.y;
    const int num_kv_heads = static_cast<int>(args.heads.num_kv_heads);
    kv_head = head % num_kv_heads;
    sequence_of_launch = head / num_kv_heads;
    head_of_cache = args.first_sequence * num_kv_heads + head;
    group = static_cast<int>(args.heads.shape.group_size);
    first_row = block.z * tile_rows;
    const int left = static_cast<int>(args.num_rows) * group - first_row;
    count = left < tile_rows ? left : tile_rows;
    length = args.heads.states[head_of_cache].length;
    // What the last row of the tile, which sees the most, does not see is not read. Splits must be
    // the same for all rows, for whoever joins them.
    const Index entries = args.splits > 1 ? length : visible(args, count - 1);
    const SplitPlan plan(entries, tile, args.splits, args.least_tiles);
    first_tile = plan.first(block.x);
    tiles = plan.first(block.x + 1) - first_tile;
  }
  /// Token of query row r of the tile, among the sequence's `rows`.
  TERSEKV_HD Index token(const Args& args, int r) const {
    return args.first_row + row_of_launch(r) / group;
  }
  TERSEKV_HD int q_head(int r) const { return kv_head * group + row_of_launch(r) % group; }
  /// Entries that row r of the tile sees.
  TERSEKV_HD Index visible(const Args& args, int r) const {
    const Index seen = length - (args.end_row - 1 - token(args, r));
    return seen > 0 ? seen : 0;
  }
  TERSEKV_HD int row_of_launch(int r) const { return first_row + r; }
  /// The tiles' way through a ring in shared memory.
  template <class Ring>
  TERSEKV_HD Ring ring(const Args& args, std::byte* shared) const {
    return {shared,
            args.heads.layout,
            args.heads.table(head_of_cache),
            static_cast<int>(length),
            first_tile * Ring::kEntries,
            tiles};
  }
  /// Weight of the entry `in_tile` of the tile from `first`, in that tile's page. A slot that was
  /// never written has any weight, and behind the last tile there is no page.
  TERSEKV_HD float weight(const Args& args, Index first, int in_tile, const std::byte* page) const {
    const PageLayout& layout = args.heads.layout;
    if (page == nullptr || first + in_tile >= length) return 1.0f;
    return reinterpret_cast<const float*>(
        page + layout.weights_at)[(first & (layout.page_size - 1)) + in_tile];
  }
  /// Row of the views q and out.
  TERSEKV_HD Index view_row(const Args& args, int r) const {
    return sequence_of_launch * args.rows + token(args, r);
  }
  TERSEKV_HD float* logits(const Args& args, int r) const {
    const int row = row_of_launch(r);
    return args.scratch.logits_of(head, row / group) + row % group * args.scratch.stride;
  }
  /// Index of the state of row r of this block's split among the partial ones.
  TERSEKV_HD Index part(const Args& args, int r, int split) const {
    return (args.num_rows * group * head + row_of_launch(r)) * args.splits + split;
  }

  /// Keeps the queries of observed rows, as the policy is shown them after `out`, which may be the
  /// same memory, is written. By one split.
  template <class Context>
  TERSEKV_HD void keep_queries(const Context& context, const Args& args) const {
    if (!args.write_logits || args.biased || context.block().x != 0) return;
    const int dim = static_cast<int>(args.heads.layout.head_dim);
    for (int i = context.thread(); i < count * dim; i += context.threads()) {
      const int r = i / dim, row = row_of_launch(r);
      args.scratch.query_of(head, row / group)[row % group * dim + i % dim] =
          to_float(args.q(view_row(args, r), q_head(r), i % dim));
    }
  }

  /// Element j of row r, with the row's normaliser at hand: into `out`, or to the partial states.
  TERSEKV_HD void write(const Args& args, int r, Index j, int split, float sum, float total) const {
    if (args.splits > 1) {
      args.part_out[part(args, r, split) * args.heads.layout.head_dim + j] = total;
    } else if (args.out.data != nullptr) {
      using T = std::remove_const_t<std::remove_reference_t<decltype(args.out(0, 0, 0))>>;
      args.out(view_row(args, r), q_head(r), j) = to_output<T>(sum > 0.0f ? total / sum : 0.0f);
    }
  }
  TERSEKV_HD void write_normaliser(const Args& args, int r, int split, float max, float sum) const {
    if (args.splits > 1) {
      args.part_max[part(args, r, split)] = max;
      args.part_sum[part(args, r, split)] = sum;
      return;
    }
    const float lse = max + std::log(sum > 0.0f ? sum : 1.0f);
    const int row = row_of_launch(r);
    if (args.lse != nullptr) args.lse[view_row(args, r) * args.q.heads + q_head(r)] = lse;
    if (args.write_logits) args.scratch.lse_of(head, row / group)[row % group] = lse;
  }
};

}  // namespace tersekv::cuda
