// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/cuda/body/context.hpp"

namespace tersekv::cuda {

/// The step of one head, called rather than inlined: attention's registers stay what they are, and
/// all attention bodies share one copy.
template <class Step, class Context>
TERSEKV_CALLED TERSEKV_HD void step_of_head(const Context& context, const typename Step::Args& args,
                                            Index head) {
  Step::of_head(context, args, head);
}

/// Attention of one token with the policy's step in its epilogue: the block that is the last to be
/// done with a head joins the splits, shows the policy its attention, and looks for victims, while
/// other heads' entries still stream. One launch, whose memory time hides the step.
///
/// `Attention` must have all rows of a head in one tile.
template <class Attention, class Step>
struct DecodeBody {
  struct Args : Step::Args {
    std::int32_t* arrivals = nullptr;  ///< [heads], zero between launches
  };
  static constexpr int kThreads = Attention::kThreads;
  static constexpr int kTileEntries = Attention::kTileEntries;
  static constexpr int kTileRows = Attention::kTileRows;
  static constexpr std::size_t kSharedBytes = Attention::kSharedBytes;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    Attention::run(context, args.attention);
    const int head = context.block().y;
    if (!context.arrive_last(args.arrivals + head, args.attention.splits)) return;
    step_of_head<Step>(context, args, head);
  }
};

}  // namespace tersekv::cuda
