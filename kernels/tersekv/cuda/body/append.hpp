// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/cuda/body/heads.hpp"
#include "tersekv/cuda/body/team.hpp"
#include "tersekv/view.hpp"

namespace tersekv::cuda {

/// New tokens into pages from the pool, `rows` for every sequence of the launch, a team per head.
/// A head for which there is no page, or no room in its table, keeps what it has, and is counted in
/// `failed`.
template <class PolicyType, class KeyCodec, class ValueCodec, class T, int Threads>
struct AppendBody {
  struct Args {
    DeviceHeads<KeyCodec, ValueCodec> heads;
    PolicyType policy;
    TokenView<const T> k = {}, v = {};  ///< tokens of all sequences of the launch, `rows` each
    ScoreView token_scores = {};
    Index first_sequence = 0, rows = 0;
    Index first_row = 0, num_rows = 0;  ///< of each sequence's rows, those to append now
    DeviceScratch scratch = {};
  };
  static constexpr int kThreads = Threads;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const int launch_head = context.block().x / context.team_blocks();
    const int num_kv_heads = static_cast<int>(args.heads.num_kv_heads);
    const int kv_head = launch_head % num_kv_heads;
    const Index row = launch_head / num_kv_heads * args.rows + args.first_row;
    const Index index = args.first_sequence * args.heads.num_kv_heads + launch_head;
    const Scratch scratch = args.scratch.of(launch_head);
    const auto head = args.heads.head(index, scratch);
    const BlockTeam<Context> team(context, args.scratch.exchange_of(launch_head));
    const std::int32_t held = args.heads.held[index];
    const Index first = head.length(), tokens = args.num_rows, dim = head.head_dim();

    std::int32_t* fits = scratch.slots;
    team.once([&] { *fits = args.heads.take_pages(context, index, held, first + tokens) ? 1 : 0; });
    if (*fits == 0) return;

    team.once([&] {
      head.state().length += tokens;
      head.state().note_append(tokens);
    });
    const Index seen = head.tokens_seen() - tokens;
    team.for_each(tokens * dim, [&](Index i) {
      const Index t = i / dim, j = i % dim;
      head.set_key(first + t, j, to_float(args.k(row + t, kv_head, j)));
      head.set_value(first + t, j, to_float(args.v(row + t, kv_head, j)));
    });
    team.for_each(tokens, [&](Index t) {
      head.set_position(first + t, seen + t);
      if constexpr (PolicyType::uses_weights) head.set_weight(first + t, 1.0f);
      head.clear_statistics(first + t);
      if constexpr (PolicyType::needs_token_scores) {
        scratch.floats[t] = args.token_scores(row + t, kv_head);
      }
    });
    args.policy.append(team, head, first, tokens,
                       PolicyType::needs_token_scores ? scratch.floats : nullptr);
  }
};

}  // namespace tersekv::cuda
