// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/cuda/body/heads.hpp"

namespace tersekv::cuda {

/// Takes the latest tokens of heads back, and gives their pages back to the pool. A block per head.
template <class KeyCodec, class ValueCodec, int Threads>
struct RewindBody {
  struct Args {
    DeviceHeads<KeyCodec, ValueCodec> heads;
    Index first_head = 0;
    Index tokens = 0;
  };
  static constexpr int kThreads = Threads;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    if (context.thread() != 0) return;
    const Index index = args.first_head + context.block().x;
    HeadState& state = args.heads.states[index];
    // No more than it has: the head may have found no page for them.
    const Index most = state.most_rewound(), tokens = args.tokens < most ? args.tokens : most;
    state.length -= tokens;
    state.note_rewind(tokens);
    args.heads.return_pages(context, index, args.heads.held[index], state.length);
  }
};

}  // namespace tersekv::cuda
