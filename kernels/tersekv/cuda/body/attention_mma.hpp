// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "tersekv/cuda/body/attention_args.hpp"

namespace tersekv::cuda {

/// The same as AttentionBody on the tensor cores: query rows of the keys' own 16-bit type, at
/// entries in 16-bit storage. Every warp has 16 rows, a share of each tile's entries, and a running
/// softmax of its own, so a tile costs one barrier a slab; the states of warps with the same rows
/// are joined at the end, in order. Probabilities are rounded to the values' type before the second
/// product, as is usual.
///
/// For a decode step all warps have the same 16 rows (RowWarps = 1). For a prompt every warp has
/// rows of its own (RowWarps = Warps), so that K and V are read once for all of them.
///
/// Registers follow PTX's mma.m16n8k16: with w = lane / 4 and c = lane % 4, a lane holds rows w and
/// w + 8, columns 2c and 2c + 1 of each 8 columns of a product.
template <class KeyCodec, class ValueCodec, int Dim, int Warps, int RowWarps = 1>
struct AttentionMmaBody {
  static_assert(sizeof(KeyCodec) == 2 && sizeof(ValueCodec) == 2 && Dim % 16 == 0);
  using Args = AttentionArgs<KeyCodec, ValueCodec, KeyCodec>;
  static constexpr int kThreads = Warps * kWarp;
  using Ring = TileRing<KeyCodec, ValueCodec, Dim, kThreads, true>;
  static constexpr int kTileEntries = Ring::kEntries;
  static constexpr int kWarpRows = 16;
  static constexpr int kTileRows = RowWarps * kWarpRows;

  /// Blocks at once that are worth fewer registers: a prompt's warps hold more of them.
  static constexpr int kMostBlocks = RowWarps > 1 ? 2 : 3;

  /// Whether tiles are asked for before the query rows. It takes registers, which long rows and a
  /// prompt's warps have none of to spare, and a prompt takes long enough not to notice.
  static constexpr bool kStartsEarly = RowWarps == 1 && Dim <= 128;

  static constexpr int kSteps = Dim / 16;                             // of 16 dimensions
  static constexpr int kQueryBytes = RowWarps * kSteps * kWarp * 16;  // fragments
  static constexpr int kJoin = Warps * kWarpRows * Dim;               // floats
  static constexpr int kRingBytes = Ring::kBytes > 4 * kJoin ? Ring::kBytes
                                                             : (4 * kJoin + 127) / 128 * 128;
  static constexpr std::size_t kSharedBytes =
      static_cast<std::size_t>(kRingBytes) + kQueryBytes + std::size_t{2 * 4 * Warps * kWarpRows};

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const AttentionWork<Args> work(context, args, kTileRows, kTileEntries);
    if (work.tiles <= 0 && context.block().x > 0) return;
    Ring ring = work.template ring<Ring>(args, context.shared());
    const std::byte* first_page = nullptr;
    if constexpr (kStartsEarly) first_page = ring.start(context);
    AttentionMmaBody body(context, args, work);
    load_queries(context, args, work);
    work.keep_queries(context, args);
    if constexpr (!kStartsEarly) first_page = ring.start(context);
    body.ask_weights(context, args, work, Index{work.first_tile} * kTileEntries, first_page);
    ring.stream(
        context,
        [&](Index first, const std::byte* next_page) {
          body.load_bias(context, args);
          body.ask_weights(context, args, work, first + kTileEntries, next_page);
        },
        [&](const std::byte* slab, Index first) {
          body.logits(context, slab);
          body.softmax(context, args, first);
        },
        [&](const std::byte* slab) { body.values(context, slab); });
    body.finish(context, args, work);
  }

 private:
  static constexpr int kEntryWarps = Warps / RowWarps;      // that have the same rows
  static constexpr int kMine = kTileEntries / kEntryWarps;  // entries of a warp
  static constexpr int kGroups = kMine / 8;                 // of eight entries, one product each
  static constexpr int kOwn = (kMine + kWarp - 1) / kWarp;  // weights of a lane
  static constexpr int kColumns = Dim / 8;                  // of eight dimensions
  static_assert(kMine % 16 == 0 && Warps % RowWarps == 0);

  struct alignas(16) Fragment {
    std::uint32_t word[4];
  };
  TERSEKV_HD static Fragment* queries(std::byte* shared) {
    return reinterpret_cast<Fragment*>(shared + kRingBytes);
  }
  /// Which 16 rows of the tile this warp has, and which share of its entries.
  template <class Context>
  TERSEKV_HD static int row_part(const Context& context) {
    return context.warp() / kEntryWarps;
  }
  template <class Context>
  TERSEKV_HD static int entry_part(const Context& context) {
    return context.warp() % kEntryWarps;
  }

  /// The rows in the registers' order; rows that are not there are zero.
  template <class Context>
  static TERSEKV_HD void load_queries(const Context& context, const Args& args,
                                      const AttentionWork<Args>& work) {
    const int lane = context.lane();
    for (int i = context.warp(); i < RowWarps * kSteps; i += Warps) {
      // With one tile of rows these are the same each time: divisions, which take long, come once.
      const int first_row = RowWarps == 1 ? 0 : i / kSteps * kWarpRows;
      const int j = i % kSteps * 16 + lane % 4 * 2;
      Fragment fragment = {};
      TERSEKV_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int r = first_row + lane / 4 + 8 * half;
        if (r >= work.count) continue;
        const Index row = work.view_row(args, r), head = work.q_head(r);
        fragment.word[half] = two_of_query(args.q, row, head, j);
        fragment.word[half + 2] = two_of_query(args.q, row, head, j + 8);
      }
      queries(context.shared())[i * kWarp + lane] = fragment;
    }
  }
  /// Elements j, which is even, and j + 1.
  static TERSEKV_HD std::uint32_t two_of_query(const TokenView<const KeyCodec>& q, Index row,
                                               Index head, Index j) {
    const KeyCodec* at = &q(row, head, j);
    if (q.dim_stride == 1 && reinterpret_cast<std::uintptr_t>(at) % sizeof(Pair<KeyCodec>) == 0) {
      const auto both = load_pair(at);
      return both.first.bits | static_cast<std::uint32_t>(both.second.bits) << 16;
    }
    return at->bits | static_cast<std::uint32_t>(q(row, head, j + 1).bits) << 16;
  }

  /// Asks for the weights of this warp's entries of the tile from `first`, a lane for each: a tile
  /// before they are needed, as nothing else waits for them.
  template <class Context>
  TERSEKV_HD void ask_weights(const Context& context, const Args& args,
                              const AttentionWork<Args>& work, Index first, const std::byte* page) {
    if (args.alpha == 0.0f) return;
    TERSEKV_UNROLL
    for (int o = 0; o < kOwn; ++o) {
      const int entry = entry_part(context) * kMine + (o * kWarp + context.lane()) % kMine;
      weight_[o] = work.weight(args, first, entry, page);
    }
  }
  /// alpha ln w of this lane's columns of the tile whose weights were asked for.
  template <class Context>
  TERSEKV_HD void load_bias(const Context& context, const Args& args) {
    if (args.alpha == 0.0f) return;
    float own[kOwn];
    TERSEKV_UNROLL
    for (int o = 0; o < kOwn; ++o) own[o] = args.alpha * tersekv::detail::log_of(weight_[o]);
    TERSEKV_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      TERSEKV_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int entry = g * 8 + context.lane() % 4 * 2 + i;
        bias_[g][i] = context.shuffle(own[g * 8 / kWarp], entry % kWarp);
      }
    }
  }

  /// Entry of the tile that belongs to this lane's first column of group g.
  template <class Context>
  TERSEKV_HD static int column(const Context& context, int g) {
    return entry_part(context) * kMine + g * 8 + context.lane() % 4 * 2;
  }

  template <class Context>
  TERSEKV_HD void logits(const Context& context, const std::byte* slab) {
    TERSEKV_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < 4; ++i) logit_[g][i] = 0.0f;
    }
    const int lane = context.lane();
    const Fragment* rows = queries(context.shared()) + row_part(context) * kSteps * kWarp;
    TERSEKV_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const Fragment fragment = rows[step * kWarp + lane];
      const std::uint32_t a[4] = {fragment.word[0], fragment.word[1], fragment.word[2],
                                  fragment.word[3]};
      TERSEKV_UNROLL
      for (int g = 0; g < kGroups; g += 2) {
        std::uint32_t b[4];
        const int row = step * 16 + lane % 16;
        const int chunk = entry_part(context) * kGroups + g + lane / 16;
        context.load_transposed(b, slab + Ring::key_at(row, chunk));
        const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        context.template mma<KeyCodec>(logit_[g], a, low);
        context.template mma<KeyCodec>(logit_[g + 1], a, high);
      }
    }
  }

  /// This warp's running softmax over its entries of the tile; leaves the weights as the next
  /// product's left side.
  template <class Context>
  TERSEKV_HD void softmax(const Context& context, const Args& args, Index first) {
    TERSEKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (RowWarps == 1 && !live_[half]) continue;  // by all lanes
      first + kTileEntries <= all_visible_ ? softmax_of<true>(context, args, first, half)
                                           : softmax_of<false>(context, args, first, half);
    }
  }
  /// Of the lanes' lower or upper rows; Whole: all of them see the whole tile.
  template <bool Whole, class Context>
  TERSEKV_HD void softmax_of(const Context& context, const Args& args, Index first, int half) {
    const Index visible = visible_[half];
    float* const out = rows_[half];
    float highest = kLowest;
    TERSEKV_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const Index slot = first + column(context, g);
      float* const logit = &logit_[g][2 * half];
      Pair<float> shown = {logit[0] * args.heads.shape.scale, logit[1] * args.heads.shape.scale};
      logit[0] = shown.first + bias_[g][0];
      logit[1] = shown.second + bias_[g][1];
      if (args.biased) shown = {logit[0], logit[1]};
      if (Whole) {
        if (out != nullptr) *reinterpret_cast<Pair<float>*>(out + slot) = shown;
      } else {
        if (out != nullptr && slot < visible) out[slot] = shown.first;
        if (out != nullptr && slot + 1 < visible) out[slot + 1] = shown.second;
        // Of no weight beside any that is there.
        if (slot >= visible) logit[0] = kLowest;
        if (slot + 1 >= visible) logit[1] = kLowest;
      }
      TERSEKV_UNROLL
      for (int i = 0; i < 2; ++i) highest = highest > logit[i] ? highest : logit[i];
    }
    for (int mask = 1; mask <= 2; mask *= 2) {  // the four lanes of a row
      const float other = context.shuffle_xor(highest, mask);
      highest = highest > other ? highest : other;
    }
    const float max = highest > max_[half] ? highest : max_[half];
    const float factor = context.exp(max_[half] - max);
    float sum = 0;
    TERSEKV_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const Index slot = first + column(context, g);
      float weight[2];
      TERSEKV_UNROLL
      for (int i = 0; i < 2; ++i) {
        weight[i] = Whole || slot + i < visible ? context.exp(logit_[g][2 * half + i] - max) : 0.0f;
        sum += weight[i];
      }
      weights_[g][half] = context.template pack<ValueCodec>(weight[0], weight[1]);
    }
    sum_[half] = sum_[half] * factor + sum;
    if (context.ballot(max != max_[half]) == 0) return;  // as after a few tiles mostly
    max_[half] = max;
    TERSEKV_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      out_[n][2 * half] *= factor;
      out_[n][2 * half + 1] *= factor;
    }
  }

  template <class Context>
  TERSEKV_HD void values(const Context& context, const std::byte* slab) {
    const int lane = context.lane();
    TERSEKV_UNROLL
    for (int g = 0; g < kGroups; g += 2) {
      const std::uint32_t a[4] = {weights_[g][0], weights_[g][1], weights_[g + 1][0],
                                  weights_[g + 1][1]};
      TERSEKV_UNROLL
      for (int n = 0; n < kColumns; n += 2) {
        std::uint32_t b[4];
        const int row = entry_part(context) * kMine + g * 8 + lane % 16;
        context.load_transposed(b, slab + Ring::value_at(row, n + lane / 16));
        const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        context.template mma<ValueCodec>(out_[n], a, low);
        context.template mma<ValueCodec>(out_[n + 1], a, high);
      }
    }
  }

  template <class Context>
  TERSEKV_HD void finish(const Context& context, const Args& args,
                         const AttentionWork<Args>& work) {
    auto* join = reinterpret_cast<float*>(context.shared());  // over the ring, which has run dry
    auto* max = reinterpret_cast<float*>(context.shared() + kRingBytes + kQueryBytes);
    float* sum = max + Warps * kWarpRows;
    const int lane = context.lane(), split = context.block().x;
    for (float& of_row : sum_) {  // of its four lanes
      for (int mask = 1; mask <= 2; mask *= 2) of_row += context.shuffle_xor(of_row, mask);
    }
    TERSEKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int state = context.warp() * kWarpRows + lane / 4 + 8 * half;
      if (lane % 4 == 0) {
        max[state] = max_[half];
        sum[state] = sum_[half];
      }
      if (row_part(context) * kWarpRows + lane / 4 + 8 * half >= work.count) continue;
      TERSEKV_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        float* row = join + state * Dim + n * 8 + lane % 4 * 2;
        row[0] = out_[n][2 * half];
        row[1] = out_[n][2 * half + 1];
      }
    }
    context.barrier();
    const int elements = work.count * Dim;
    for (int i = context.thread(); i < elements; i += context.threads()) {
      const int r = i / Dim, j = i % Dim;
      const int first = r / kWarpRows * kEntryWarps * kWarpRows + r % kWarpRows;
      float highest = kLowest;
      TERSEKV_UNROLL
      for (int w = 0; w < kEntryWarps; ++w) {
        const float other = max[first + w * kWarpRows];
        highest = highest > other ? highest : other;
      }
      float total = 0, normaliser = 0;
      TERSEKV_UNROLL
      for (int w = 0; w < kEntryWarps; ++w) {
        const int state = first + w * kWarpRows;
        const float factor = context.exp(max[state] - highest);
        normaliser += factor * sum[state];
        total += factor * join[state * Dim + j];
      }
      work.write(args, r, j, split, normaliser, total);
      if (j == 0) work.write_normaliser(args, r, split, highest, normaliser);
    }
  }

  template <class Context>
  TERSEKV_HD AttentionMmaBody(const Context& context, const Args& args,
                              const AttentionWork<Args>& work) {
    // Of rows of one token after the other, the first sees the least.
    all_visible_ = work.visible(args, 0);
    for (int half = 0; half < 2; ++half) {
      const int r = row_part(context) * kWarpRows + context.lane() / 4 + 8 * half;
      live_[half] = 8 * half < work.count;
      visible_[half] = r < work.count ? work.visible(args, r) : 0;
      rows_[half] = args.write_logits && r < work.count ? work.logits(args, r) : nullptr;
      max_[half] = kLowest;
      sum_[half] = 0.0f;
    }
    for (int n = 0; n < kColumns; ++n) {
      for (int i = 0; i < 4; ++i) out_[n][i] = 0.0f;
    }
    for (int g = 0; g < kGroups; ++g) {
      bias_[g][0] = bias_[g][1] = 0.0f;
      weights_[g][0] = weights_[g][1] = 0;
    }
  }

  // Of rows w and w + 8 of this warp.
  Index visible_[2];
  bool live_[2];       // whether any row is there
  Index all_visible_;  // what every row that is there sees
  float* rows_[2];
  float max_[2], sum_[2];  // sums of this lane's columns alone
  float logit_[kGroups][4], bias_[kGroups][2];
  float weight_[kOwn];
  std::uint32_t weights_[kGroups][2];
  float out_[kColumns][4];
};

}  // namespace tersekv::cuda
