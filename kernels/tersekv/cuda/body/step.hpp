// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "tersekv/cuda/body/attention_args.hpp"
#include "tersekv/cuda/body/team.hpp"
#include "tersekv/policy_parts.hpp"

namespace tersekv::cuda {

/// What follows attention, a team per head: joins the states of the splits, works the attention per
/// entry out of the logits, shows it to the policy, lets it compress, and gives pages back. Each is
/// done where it is asked for.
template <class PolicyType, class KeyCodec, class ValueCodec, class T, int Threads>
struct StepBody {
  using Attention = AttentionArgs<KeyCodec, ValueCodec, T>;
  struct Args {
    Attention attention = {};  ///< of the launch before
    PolicyType policy = {};
    GroupReduce reduce = GroupReduce::sum;
    bool join = false;           ///< the states of splits
    bool observe = false;        ///< the rows of the launch, by the policy
    bool first_observed = true;  ///< the first of them is the first of its call
    bool compress = false;
    bool keep_pages = false;  ///< what a compression leaves free stays the head's: where others may
                              ///< take pages at the same time
    AttentionRows<float> rows_out = {};       ///< attention per entry for the caller, or empty
    AttentionRows<const float> rows_in = {};  ///< to observe instead of what was attended, or empty
    /// Numbers that each of these rows has for a head, as the host knew its length: in a replayed
    /// graph the head may have more entries, and there is no room for them.
    Index row_entries = 0;
  };
  static constexpr int kThreads = Threads;
  static constexpr bool kTakesFewerThreads = true;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const int launch_head = context.block().x / context.team_blocks();
    const Attention& attention = args.attention;
    const Index index = attention.first_sequence * attention.heads.num_kv_heads + launch_head;
    const auto head = attention.heads.head(index, attention.scratch.of(launch_head));
    BlockTeam<Context> team(context, attention.scratch.exchange_of(launch_head));
    if (args.join) join_splits(context, team, attention, launch_head);
    const bool shown = args.observe || args.rows_out.data != nullptr;
    for (Index r = 0; shown && r < attention.num_rows; ++r) {
      const bool first = r == 0 && args.first_observed;
      if (args.rows_in.data != nullptr) {
        const int kv_head = launch_head % static_cast<int>(attention.heads.num_kv_heads);
        args.policy.observe(team, head,
                            Observation{.visible = within(args, visible(attention, head, r)),
                                        .first = first,
                                        .attention = args.rows_in.row(r, kv_head)});
      } else {
        show(team, args, head, launch_head, r, first);
      }
    }
    if (!args.compress) return;
    const std::int32_t held = attention.heads.held[index];
    args.policy.compress(team, head);
    team.once([&] {
      head.state().note_compression();
      if (!args.keep_pages) attention.heads.return_pages(context, index, held, head.length());
    });
  }

 private:
  /// Of so many entries those that the caller's rows have a number for.
  static TERSEKV_HD Index within(const Args& args, Index entries) {
    return entries < args.row_entries ? entries : args.row_entries;
  }
  template <class HeadType>
  static TERSEKV_HD Index visible(const Attention& attention, const HeadType& head, Index r) {
    const Index seen = head.length() - (attention.end_row - 1 - (attention.first_row + r));
    return seen > 0 ? seen : 0;
  }

  /// out = sum_s exp(max_s - max) out_s / sum_s exp(max_s - max) sum_s, the splits in an order that
  /// depends on how many there are alone. A warp has up to 128 elements of a row, four a lane; of
  /// the splits' factors a lane has one in 32. A block has nothing to hide latency behind here, so
  /// loads of several splits are on their way at once.
  template <class Context>
  static TERSEKV_HD void join_splits(const Context& context, const BlockTeam<Context>& team,
                                     const Attention& attention, int launch_head) {
    constexpr int each = 4, at_once = 8;
    struct alignas(16) Elements {
      float at[each];
    };
    const Index group = attention.heads.shape.group_size;
    const int dim = static_cast<int>(attention.heads.layout.head_dim);
    const int rows = static_cast<int>(attention.num_rows * group);
    const Index length =
        attention.heads
            .states[attention.first_sequence * attention.heads.num_kv_heads + launch_head]
            .length;
    const SplitPlan plan(length, attention.tile, attention.splits, attention.least_tiles);
    const int used = plan.used(), lane = context.lane();
    const int chunks = (dim + each * kWarp - 1) / (each * kWarp);
    const int warps = static_cast<int>(team.lanes() / kWarp);
    team.barrier();
    for (int item = static_cast<int>(team.lane() / kWarp); item < rows * chunks; item += warps) {
      const int row = item / chunks, j = (item % chunks * kWarp + lane) * each;
      const Index part = (launch_head * rows + row) * attention.splits;
      float max = kLowest, sum = 0;
      Elements total = {};
      for (int start = 0; start < used; start += kWarp) {
        const bool mine = start + lane < used;
        const float of_split = mine ? attention.part_max[part + start + lane] : kLowest;
        const float its_sum = mine ? attention.part_sum[part + start + lane] : 0.0f;
        float highest = max > of_split ? max : of_split;
        for (int mask = 1; mask < kWarp; mask *= 2) {
          const float other = context.shuffle_xor(highest, mask);
          highest = highest > other ? highest : other;
        }
        const float before = context.exp(max - highest);
        const float factor = mine ? context.exp(of_split - highest) : 0.0f;
        sum *= before;
        for (float& x : total.at) x *= before;
        max = highest;
        for (int first = start; first < used && first < start + kWarp; first += at_once) {
          Elements part_of[at_once];
          TERSEKV_UNROLL
          for (int s = 0; s < at_once; ++s) {
            part_of[s] = {};
            if (first + s >= used || j >= dim) continue;
            part_of[s] = *reinterpret_cast<const Elements*>(attention.part_out +
                                                            (part + first + s) * dim + j);
          }
          TERSEKV_UNROLL
          for (int s = 0; s < at_once; ++s) {
            const float by = context.shuffle(factor, first - start + s);
            sum += by * context.shuffle(its_sum, first - start + s);
            TERSEKV_UNROLL
            for (int e = 0; e < each; ++e) total.at[e] += by * part_of[s].at[e];
          }
        }
      }
      write_row(attention, launch_head, row, j, max, sum, total.at, each);
    }
    team.barrier();
  }
  /// Elements j to j + count of row `row` of the launch, and its normaliser where j is 0.
  static TERSEKV_HD void write_row(const Attention& attention, int launch_head, int row, int j,
                                   float max, float sum, const float* total, int count) {
    const int group = static_cast<int>(attention.heads.shape.group_size);
    const int num_kv_heads = static_cast<int>(attention.heads.num_kv_heads);
    const Index dim = attention.heads.layout.head_dim;
    const Index view_row =
        launch_head / num_kv_heads * attention.rows + attention.first_row + row / group;
    const int q_head = launch_head % num_kv_heads * group + row % group;
    for (int e = 0; e < count && j + e < dim && attention.out.data != nullptr; ++e) {
      attention.out(view_row, q_head, j + e) = to_output<T>(sum > 0.0f ? total[e] / sum : 0.0f);
    }
    if (j != 0) return;
    const float lse = max + std::log(sum > 0.0f ? sum : 1.0f);
    if (attention.lse != nullptr) attention.lse[view_row * attention.q.heads + q_head] = lse;
    if (attention.write_logits) {
      attention.scratch.lse_of(launch_head, row / group)[row % group] = lse;
    }
  }
  /// Attention per entry of row r, for the policy or the caller, or the logits as they are.
  template <class Team, class HeadType>
  static TERSEKV_HD void show(Team& team, const Args& args, const HeadType& head, int launch_head,
                              Index r, bool first) {
    const Attention& attention = args.attention;
    const DeviceScratch& scratch = attention.scratch;
    const int kv_head = launch_head % static_cast<int>(attention.heads.num_kv_heads);
    const Index entries = visible(attention, head, r);
    const float* logits = scratch.logits_of(launch_head, r);
    const float* lse = scratch.lse_of(launch_head, r);
    Observation row{.visible = entries, .first = first};
    if (attention.biased) {
      const bool for_caller = args.rows_out.data != nullptr;
      float* reduced =
          for_caller ? args.rows_out.row(r, kv_head) : scratch.attention_of(launch_head);
      reduce_group(team, args, logits, lse, for_caller ? within(args, entries) : entries, reduced);
      row.attention = reduced;
    } else {
      row.logits = logits;
      row.logit_stride = scratch.stride;
      row.lse = lse;
      row.query = scratch.query_of(launch_head, r);
    }
    if (args.observe) args.policy.observe(team, head, row);
  }
  /// The group's attention for each of `entries`, reduced to one number.
  template <class Team>
  static TERSEKV_HD void reduce_group(const Team& team, const Args& args, const float* logits,
                                      const float* lse, Index entries, float* reduced) {
    constexpr int at_once = Team::kAtOnce;
    const Index group = args.attention.heads.shape.group_size;
    const Index stride = args.attention.scratch.stride;
    const float parts = args.reduce == GroupReduce::mean ? static_cast<float>(group) : 1.0f;
    team.barrier();
    for (Index start = team.lane(); start < entries; start += at_once * team.lanes()) {
      float total[at_once] = {};
      TERSEKV_UNROLL_BY(4)
      for (Index g = 0; g < group; ++g) {
        TERSEKV_UNROLL
        for (int u = 0; u < at_once; ++u) {
          const Index i = start + u * team.lanes();
          const float difference = logits[g * stride + (i < entries ? i : start)] - lse[g];
          const float a = std::exp(difference < 0.0f ? difference : 0.0f);
          total[u] = args.reduce == GroupReduce::max ? (a > total[u] ? a : total[u]) : total[u] + a;
        }
      }
      TERSEKV_UNROLL
      for (int u = 0; u < at_once; ++u) {
        const Index i = start + u * team.lanes();
        if (i < entries) reduced[i] = total[u] / parts;
      }
    }
    team.barrier();
  }
};

}  // namespace tersekv::cuda
