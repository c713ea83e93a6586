// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "tersekv/cuda/body/context.hpp"
#include "tersekv/surrogate.hpp"

namespace tersekv::cuda {

/// KVzap's surrogate for the tokens of a step, a block per token: see `tersekv::Surrogate`. A warp
/// works out one row of a layer at a time; the inner layer stays in shared memory.
template <class T, int Threads>
struct SurrogateBody {
  struct Args {
    LinearView first, second;  ///< in device memory; first.outputs is 0 for a linear surrogate
    const T* hidden = nullptr;
    Index row_stride = 0;
    float* scores = nullptr;  ///< [tokens, second.outputs]
  };
  static constexpr int kThreads = Threads;
  /// Outputs of the inner layer, at most.
  static constexpr Index kMostInner = 8192;
  static constexpr std::size_t kSharedBytes = sizeof(float) * kMostInner;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const Index token = context.block().x;
    const T* row = args.hidden + token * args.row_stride;
    const auto of_row = [&](Index i) { return to_float(row[i]); };
    float* scores = args.scores + token * args.second.outputs;
    const auto score = [&](Index o, float y) { scores[o] = y; };
    if (args.first.outputs == 0) {
      apply(context, args.second, of_row, score);
      return;
    }
    auto* inner = reinterpret_cast<float*>(context.shared());
    apply(context, args.first, of_row,
          [&](Index o, float y) { inner[o] = 0.5f * y * (1.0f + std::erf(y * 0.70710678f)); });
    context.barrier();
    apply(
        context, args.second, [&](Index i) { return inner[i]; }, score);
  }

 private:
  template <class Context, class Input, class Output>
  static TERSEKV_HD void apply(const Context& context, const LinearView& layer, const Input& x,
                               const Output& y) {
    for (Index o = context.warp(); o < layer.outputs; o += Threads / kWarp) {
      const float* weights = layer.weight + o * layer.inputs;
      float sum = 0;
      for (Index i = context.lane(); i < layer.inputs; i += kWarp) sum += weights[i] * x(i);
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += context.shuffle_xor(sum, mask);
      if (context.lane() == 0) y(o, sum + layer.bias[o]);
    }
  }
};

}  // namespace tersekv::cuda
