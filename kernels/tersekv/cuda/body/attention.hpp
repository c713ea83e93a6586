// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <type_traits>

#include "tersekv/cuda/body/attention_args.hpp"

namespace tersekv::cuda {

/// Compensated attention of up to Rows query rows against one head's entries, on the ordinary
/// cores: any storage, any group. For a decode step the rows are the group's query heads, for a
/// prompt as many tokens' as fit. One pass over K and V; the sums run in float, as on the CPU.
///
/// A warp has a share of the dimensions for the logits (two entries a lane), of the rows for the
/// softmax, and of the entries for the values (two dimensions a lane and turn).
template <class KeyCodec, class ValueCodec, class T, int Dim, int Rows, int Warps>
struct AttentionBody {
  using Args = AttentionArgs<KeyCodec, ValueCodec, T>;
  static constexpr int kThreads = Warps * kWarp;
  using Ring = TileRing<KeyCodec, ValueCodec, Dim, kThreads, false>;
  static constexpr int kTileEntries = Ring::kEntries;
  static constexpr int kTileRows = Rows;

  static constexpr int kParts = Warps * Rows * kTileEntries;  // floats: a warp's share of logits
  static constexpr int kJoin = Warps * Rows * Dim;            // floats: a warp's share of outputs
  static constexpr int kRingBytes = Ring::kBytes > 4 * kJoin ? Ring::kBytes
                                                             : (4 * kJoin + 127) / 128 * 128;
  static constexpr std::size_t kSharedBytes =
      static_cast<std::size_t>(kRingBytes) +
      4 * (Rows * Dim + kParts + Rows * kTileEntries + kTileEntries + 2 * Rows);

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const AttentionWork<Args> work(context, args, Rows, kTileEntries);
    if (work.tiles <= 0 && context.block().x > 0) return;
    Ring ring = work.template ring<Ring>(args, context.shared());
    const std::byte* first_page = ring.start(context);
    const Shared shared(context.shared());
    AttentionBody body(context, args, work);
    body.ask_weights(context, args, work, Index{work.first_tile} * kTileEntries, first_page);
    load_queries(context, args, work, shared);
    work.keep_queries(context, args);
    ring.stream(
        context,
        [&](Index first, const std::byte* next_page) {
          body.load_bias(context, args, shared);
          body.ask_weights(context, args, work, first + kTileEntries, next_page);
        },
        [&](const std::byte* slab, Index first) {
          body.logits(context, args, shared, slab, first);
        },
        [&](const std::byte* slab) { body.values(context, shared, slab); });
    body.finish(context, args, work, shared);
  }

 private:
  static constexpr int kMyRows = (Rows + Warps - 1) / Warps;  // of a warp, for the softmax
  static constexpr int kTurns = (Dim / 2 + kWarp - 1) / kWarp;
  static constexpr int kOwn = (kTileEntries + kThreads - 1) / kThreads;  // weights of a thread

  struct Shared {
    float *join, *query, *parts, *weights, *bias, *factor, *sums;
    TERSEKV_HD explicit Shared(std::byte* memory) {
      join = reinterpret_cast<float*>(memory);                // over the ring, once it has run dry
      query = reinterpret_cast<float*>(memory + kRingBytes);  // [Dim, Rows]
      parts = query + Rows * Dim;                             // [Warps, Rows, entries]
      weights = parts + kParts;                               // [Rows, entries], exp(l - max)
      bias = weights + Rows * kTileEntries;                   // [entries]
      factor = bias + kTileEntries;                           // [Rows]
      sums = factor + Rows;                                   // [Rows]
    }
  };

  template <class Context>
  static TERSEKV_HD void load_queries(const Context& context, const Args& args,
                                      const AttentionWork<Args>& work, const Shared& shared) {
    for (int i = context.thread(); i < Rows * Dim; i += context.threads()) {
      const int r = i / Dim, j = i % Dim;
      shared.query[j * Rows + r] =
          r < work.count ? to_float(args.q(work.view_row(args, r), work.q_head(r), j)) : 0.0f;
    }
  }

  /// Asks for the weights of this thread's entries of the tile from `first`, a tile before they are
  /// needed.
  template <class Context>
  TERSEKV_HD void ask_weights(const Context& context, const Args& args,
                              const AttentionWork<Args>& work, Index first, const std::byte* page) {
    if (args.alpha == 0.0f) return;
    TERSEKV_UNROLL
    for (int o = 0; o < kOwn; ++o) {
      const int e = context.thread() + o * kThreads;
      weight_[o] = e < kTileEntries ? work.weight(args, first, e, page) : 1.0f;
    }
  }
  template <class Context>
  TERSEKV_HD void load_bias(const Context& context, const Args& args, const Shared& shared) const {
    if (args.alpha == 0.0f) return;
    TERSEKV_UNROLL
    for (int o = 0; o < kOwn; ++o) {
      const int e = context.thread() + o * kThreads;
      if (e < kTileEntries) shared.bias[e] = args.alpha * tersekv::detail::log_of(weight_[o]);
    }
  }

  template <class Context>
  TERSEKV_HD void logits(const Context& context, const Args& args, const Shared& shared,
                         const std::byte* slab, Index first) {
    const auto* keys = reinterpret_cast<const KeyCodec*>(slab);
    constexpr int dims = (Dim + Warps - 1) / Warps;
    const int begin = context.warp() * dims, end = begin + dims < Dim ? begin + dims : Dim;
    for (int e = 2 * context.lane(); e < kTileEntries; e += 2 * kWarp) {
      float sums[Rows][2] = {};
      for (int j = begin; j < end; ++j) {
        const auto key = load_pair(keys + j * kTileEntries + e);
        const float k0 = to_float(key.first), k1 = to_float(key.second);
        TERSEKV_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const float q = shared.query[j * Rows + r];
          sums[r][0] += q * k0;
          sums[r][1] += q * k1;
        }
      }
      float* parts = shared.parts + context.warp() * Rows * kTileEntries + e;
      TERSEKV_UNROLL
      for (int r = 0; r < Rows; ++r) {
        parts[r * kTileEntries] = sums[r][0];
        parts[r * kTileEntries + 1] = sums[r][1];
      }
    }
    context.barrier();
    TERSEKV_UNROLL
    for (int i = 0; i < kMyRows; ++i) {
      const int r = context.warp() + i * Warps;
      if (r < Rows) softmax(context, args, shared, first, r, i);
    }  // and the barrier before the slab of values
  }

  /// The running softmax of row r, the i-th of this warp.
  template <class Context>
  TERSEKV_HD void softmax(const Context& context, const Args& args, const Shared& shared,
                          Index first, int r, int i) {
    constexpr int mine = kTileEntries / kWarp;
    const Index visible = visible_[i];
    float logit[mine];
    float highest = kLowest;
    TERSEKV_UNROLL
    for (int m = 0; m < mine; ++m) {
      const int e = context.lane() + m * kWarp;
      float total = 0;
      TERSEKV_UNROLL
      for (int w = 0; w < Warps; ++w) {
        total += shared.parts[(w * Rows + r) * kTileEntries + e];
      }
      total *= args.heads.shape.scale;
      const float biased = args.alpha != 0.0f ? total + shared.bias[e] : total;
      if (first + e < visible) {
        if (args.write_logits) logits_[i][first + e] = args.biased ? biased : total;
        highest = highest > biased ? highest : biased;
      }
      logit[m] = biased;
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const float other = context.shuffle_xor(highest, mask);
      highest = highest > other ? highest : other;
    }
    const float max = highest > max_[i] ? highest : max_[i];
    float sum = 0;
    TERSEKV_UNROLL
    for (int m = 0; m < mine; ++m) {
      const int e = context.lane() + m * kWarp;
      const float weight = first + e < visible ? context.exp(logit[m] - max) : 0.0f;
      shared.weights[r * kTileEntries + e] = weight;
      sum += weight;
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += context.shuffle_xor(sum, mask);
    const float factor = context.exp(max_[i] - max);
    if (context.lane() == 0) shared.factor[r] = factor;
    sum_[i] = sum_[i] * factor + sum;
    max_[i] = max;
  }

  template <class Context>
  TERSEKV_HD void values(const Context& context, const Shared& shared, const std::byte* slab) {
    const auto* values = reinterpret_cast<const ValueCodec*>(slab);
    TERSEKV_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const float factor = shared.factor[r];
      TERSEKV_UNROLL
      for (int t = 0; t < kTurns; ++t) {
        out_[r][t][0] *= factor;
        out_[r][t][1] *= factor;
      }
    }
    constexpr int entries = kTileEntries / Warps;
    for (int e = context.warp() * entries; e < (context.warp() + 1) * entries; ++e) {
      float value[kTurns][2];
      TERSEKV_UNROLL
      for (int t = 0; t < kTurns; ++t) {
        const int j = 2 * (context.lane() + t * kWarp);
        const auto pair = load_pair(values + e * Dim + (j < Dim ? j : 0));
        value[t][0] = to_float(pair.first);
        value[t][1] = to_float(pair.second);
      }
      TERSEKV_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const float weight = shared.weights[r * kTileEntries + e];
        TERSEKV_UNROLL
        for (int t = 0; t < kTurns; ++t) {
          out_[r][t][0] += weight * value[t][0];
          out_[r][t][1] += weight * value[t][1];
        }
      }
    }
  }

  template <class Context>
  TERSEKV_HD void finish(const Context& context, const Args& args, const AttentionWork<Args>& work,
                         const Shared& shared) {
    const int split = context.block().x;
    TERSEKV_UNROLL
    for (int i = 0; i < kMyRows; ++i) {
      const int r = context.warp() + i * Warps;
      if (r < work.count && context.lane() == 0) {
        shared.sums[r] = sum_[i];
        work.write_normaliser(args, r, split, max_[i], sum_[i]);
      }
    }
    TERSEKV_UNROLL
    for (int r = 0; r < Rows; ++r) {
      TERSEKV_UNROLL
      for (int t = 0; t < kTurns; ++t) {
        const int j = 2 * (context.lane() + t * kWarp);
        if (j >= Dim) continue;
        shared.join[(context.warp() * Rows + r) * Dim + j] = out_[r][t][0];
        shared.join[(context.warp() * Rows + r) * Dim + j + 1] = out_[r][t][1];
      }
    }
    context.barrier();
    for (int i = context.thread(); i < work.count * Dim; i += context.threads()) {
      float total = 0;
      TERSEKV_UNROLL
      for (int w = 0; w < Warps; ++w) total += shared.join[w * Rows * Dim + i];
      work.write(args, i / Dim, i % Dim, split, shared.sums[i / Dim], total);
    }
  }

  template <class Context>
  TERSEKV_HD AttentionBody(const Context& context, const Args& args,
                           const AttentionWork<Args>& work) {
    for (int i = 0; i < kMyRows; ++i) {
      const int r = context.warp() + i * Warps;
      visible_[i] = r < work.count ? work.visible(args, r) : 0;
      logits_[i] = args.write_logits && r < work.count ? work.logits(args, r) : nullptr;
      max_[i] = kLowest;
      sum_[i] = 0.0f;
    }
    for (int r = 0; r < Rows; ++r) {
      for (int t = 0; t < kTurns; ++t) out_[r][t][0] = out_[r][t][1] = 0.0f;
    }
  }

  // Of the rows of this warp.
  Index visible_[kMyRows];
  float* logits_[kMyRows];
  float max_[kMyRows], sum_[kMyRows];
  float out_[Rows][kTurns][2];
  float weight_[kOwn];
};

}  // namespace tersekv::cuda
