// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/cuda/body/heads.hpp"

namespace tersekv::cuda {

/// Forgets what heads hold: pages back to the pool, positions from 0 again, the budget stays. A
/// block per head.
template <class KeyCodec, class ValueCodec, int Threads>
struct ClearBody {
  struct Args {
    DeviceHeads<KeyCodec, ValueCodec> heads;
    Index first_head = 0;
  };
  static constexpr int kThreads = Threads;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const Index index = args.first_head + context.block().x;
    float* registers = args.heads.registers + index * args.heads.layout.registers;
    for (Index i = context.thread(); i < args.heads.layout.registers; i += context.threads()) {
      registers[i] = 0.0f;
    }
    if (context.thread() != 0) return;
    HeadState& state = args.heads.states[index];
    args.heads.return_pages(context, index, args.heads.held[index], 0);
    const Index budget = state.budget;
    state = HeadState{};
    state.budget = budget;
  }
};

}  // namespace tersekv::cuda
