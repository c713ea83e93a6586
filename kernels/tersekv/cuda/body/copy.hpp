// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/cuda/body/heads.hpp"

namespace tersekv::cuda {

/// What the heads of one sequence hold, into empty ones of other sequences, on pages from the pool.
/// A block per head. One for which there are not enough pages stays empty, and is counted in
/// `failed`.
template <class KeyCodec, class ValueCodec, int Threads>
struct CopySequenceBody {
  struct Args {
    DeviceHeads<KeyCodec, ValueCodec> heads;
    Index source = 0, first_head = 0;  ///< first heads of the original and of the copies
  };
  static constexpr int kThreads = Threads;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const DeviceHeads<KeyCodec, ValueCodec>& heads = args.heads;
    const Index index = args.first_head + context.block().x;
    const Index source = args.source + context.block().x % heads.num_kv_heads;
    const HeadState& from = heads.states[source];
    HeadState& to = heads.states[index];
    if (context.thread() == 0 && heads.take_pages(context, index, 0, from.length)) {
      to = from;  // the budget is the same
    }
    context.barrier();
    if (to.length != from.length) return;
    const auto copy = [&](const void* original, void* copied, Index bytes) {
      const auto* words = static_cast<const std::uint32_t*>(original);
      for (Index i = context.thread(); 4 * i < bytes; i += context.threads()) {
        static_cast<std::uint32_t*>(copied)[i] = words[i];
      }
    };
    const Index registers = heads.layout.registers;
    copy(heads.registers + source * registers, heads.registers + index * registers, 4 * registers);
    for (Index p = 0; p < heads.pages_for(from.length); ++p) {
      copy(heads.table(source)[p], heads.table(index)[p], heads.layout.page_bytes);
    }
  }
};

}  // namespace tersekv::cuda
