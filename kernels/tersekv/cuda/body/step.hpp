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
    AttentionRows<float> rows_out = {};       ///< attention per entry for the caller, or empty
    AttentionRows<const float> rows_in = {};  ///< to observe instead of what was attended, or empty
    /// Numbers that each of these rows has for a head, as the host knew its length: in a replayed
    /// graph the head may have more entries, and there is no room for them.
    Index row_entries = 0;
  };
  static constexpr int kThreads = Threads;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    of_head(context, args, context.block().x / context.team_blocks());
  }
  /// By all blocks of the team.
  template <class Context>
  static TERSEKV_HD void of_head(const Context& context, const Args& args, Index launch_head) {
    const Attention& attention = args.attention;
    const Index index = attention.first_sequence * attention.heads.num_kv_heads + launch_head;
    const auto head = attention.heads.head(index, attention.scratch.of(launch_head));
    BlockTeam<Context> team(context, attention.scratch.exchange_of(launch_head));
    if (args.join) join_splits(context, team, attention, launch_head);
    const bool shown = args.observe || args.rows_out.data != nullptr;
    for (Index r = 0; shown && r < attention.num_rows; ++r) {
      const bool first = r == 0 && args.first_observed;
      if (args.rows_in.data != nullptr) {
        const Index kv_head = launch_head % attention.heads.num_kv_heads;
        args.policy.observe(team, head,
                            Observation{.visible = within(args, visible(attention, head, r)),
                                        .first = first,
                                        .attention = args.rows_in.row(r, kv_head)});
      } else {
        show(team, args, head, launch_head, r, first);
      }
    }
    if (!args.compress) return;
    const Index held = attention.heads.pages_for(head.length());
    args.policy.compress(team, head);
    team.once([&] {
      head.state().note_compression();
      attention.heads.return_pages(context, index, held, head.length());
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

  /// out = sum_s exp(max_s - max) out_s / sum_s exp(max_s - max) sum_s, in the order of the splits.
  template <class Context>
  static TERSEKV_HD void join_splits(const Context& context, const BlockTeam<Context>& team,
                                     const Attention& attention, Index launch_head) {
    const Index group = attention.heads.shape.group_size, dim = attention.heads.layout.head_dim;
    const Index num_rows = attention.num_rows;
    const Index sequence = launch_head / attention.heads.num_kv_heads;
    const Index kv_head = launch_head % attention.heads.num_kv_heads;
    const Index length =
        attention.heads
            .states[attention.first_sequence * attention.heads.num_kv_heads + launch_head]
            .length;
    const SplitPlan plan(length, attention.tile, attention.splits, attention.least_tiles);
    const int used = plan.used();
    team.for_each(num_rows * group * dim, [&](Index i) {
      const Index row = i / dim, j = i % dim;
      const Index part = (launch_head * num_rows * group + row) * attention.splits;
      float max = kLowest;
      for (int s = 0; s < used; ++s) {
        const float other = attention.part_max[part + s];
        max = max > other ? max : other;
      }
      float sum = 0, total = 0;
      for (int s = 0; s < used; ++s) {
        const float factor = context.exp(attention.part_max[part + s] - max);
        sum += factor * attention.part_sum[part + s];
        total += factor * attention.part_out[(part + s) * dim + j];
      }
      const Index view_row = sequence * attention.rows + attention.first_row + row / group;
      const Index q_head = kv_head * group + row % group;
      if (attention.out.data != nullptr) {
        attention.out(view_row, q_head, j) = to_output<T>(sum > 0.0f ? total / sum : 0.0f);
      }
      if (j != 0) return;
      const float lse = max + std::log(sum > 0.0f ? sum : 1.0f);
      if (attention.lse != nullptr) {
        attention.lse[view_row * attention.q.heads + q_head] = lse;
      }
      if (attention.write_logits) {
        attention.scratch.lse_of(launch_head, row / group)[row % group] = lse;
      }
    });
  }
  /// Attention per entry of row r, for the policy or the caller, or the logits as they are.
  template <class Team, class HeadType>
  static TERSEKV_HD void show(Team& team, const Args& args, const HeadType& head, Index launch_head,
                              Index r, bool first) {
    const Attention& attention = args.attention;
    const DeviceScratch& scratch = attention.scratch;
    const Index group = attention.heads.shape.group_size;
    const Index kv_head = launch_head % attention.heads.num_kv_heads;
    const Index entries = visible(attention, head, r);
    const float* logits = scratch.logits_of(launch_head, r);
    const float* lse = scratch.lse_of(launch_head, r);
    Observation row{.visible = entries, .first = first};
    if (attention.biased) {
      const bool for_caller = args.rows_out.data != nullptr;
      float* reduced =
          for_caller ? args.rows_out.row(r, kv_head) : scratch.attention_of(launch_head);
      team.for_each(for_caller ? within(args, entries) : entries, [&](Index i) {
        float total = 0;
        for (Index g = 0; g < group; ++g) {
          const float difference = logits[g * scratch.stride + i] - lse[g];
          const float a = std::exp(difference < 0.0f ? difference : 0.0f);
          total = args.reduce == GroupReduce::max ? (a > total ? a : total) : total + a;
        }
        reduced[i] = args.reduce == GroupReduce::mean ? total / static_cast<float>(group) : total;
      });
      row.attention = reduced;
    } else {
      row.logits = logits;
      row.logit_stride = scratch.stride;
      row.lse = lse;
      row.query = scratch.query_of(launch_head, r);
    }
    if (args.observe) args.policy.observe(team, head, row);
  }
};

}  // namespace tersekv::cuda
