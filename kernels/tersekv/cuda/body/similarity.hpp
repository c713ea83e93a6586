// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "tersekv/cuda/body/team.hpp"
#include "tersekv/element.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/view.hpp"

namespace tersekv::cuda {

/// How a candidate is compared with targets.
enum class Similarity {
  dot,    ///< <candidate, target>, as ZSMerge chooses a residual slot
  cosine  ///< as KeepKV chooses a carrier; a zero key is similar to nothing (0)
};

/// The target most similar to each candidate; ties go to the lower position. A block per candidate
/// and head. The cosine is compared as its square with its sign, in double precision, so equal keys
/// are exactly 1, whatever their length (`tersekv::KeyNorms`).
template <class T, int Threads>
struct SimilarityBody {
  struct Args {
    TokenView<const T> candidates, targets;  ///< [keys, heads, head_dim]
    Similarity similarity = Similarity::cosine;
    const std::int32_t* positions = nullptr;  ///< [heads, targets] or null: the target's index
    const std::uint8_t* eligible = nullptr;   ///< [heads, targets] or null: all
    std::int32_t* nearest = nullptr;          ///< [heads, candidates]; -1 where none is eligible
    float* similarities = nullptr;            ///< [heads, candidates], or null; 0 where none is
  };
  static constexpr int kThreads = Threads;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const Index candidate = context.block().x, head = context.block().y;
    const Index dim = args.targets.head_dim, targets = args.targets.tokens;
    Best mine;
    const float own = product(args.candidates, candidate, args.candidates, candidate, head, dim);
    for (Index t = context.thread(); t < targets; t += Threads) {
      const Index at = head * targets + t;
      if (args.eligible != nullptr && args.eligible[at] == 0) continue;
      float key = product(args.targets, t, args.candidates, candidate, head, dim);
      if (args.similarity == Similarity::cosine) {
        key = signed_square(key, own, product(args.targets, t, args.targets, t, head, dim));
      }
      const Index position = args.positions == nullptr ? t : args.positions[at];
      mine = Better()(mine, Best{t, position, -key});
    }
    const Best best = context.reduce(mine, Better());
    if (context.thread() != 0) return;
    const Index to = head * args.candidates.tokens + candidate;
    args.nearest[to] = static_cast<std::int32_t>(best.slot);
    if (args.similarities == nullptr) return;
    const float key = best.slot < 0 ? 0.0f : -best.key;
    args.similarities[to] =
        args.similarity == Similarity::dot ? key : (key < 0.0f ? -std::sqrt(-key) : std::sqrt(key));
  }

 private:
  static TERSEKV_HD float product(const TokenView<const T>& a, Index i, const TokenView<const T>& b,
                                  Index j, Index head, Index dim) {
    constexpr Index run = 32;  // short sums keep a float's precision
    float total = 0;
    for (Index start = 0; start < dim; start += run) {
      const Index end = start + run < dim ? start + run : dim;
      float part = 0;
      for (Index d = start; d < end; ++d) part += to_float(a(i, head, d)) * to_float(b(j, head, d));
      total += part;
    }
    return total;
  }
  static TERSEKV_HD float signed_square(float dot, float own, float other) {
    if (!((own < other ? own : other) > 1e-30f)) return 0.0f;
    const double p = static_cast<double>(dot);
    const double square =
        p * (p < 0 ? -p : p) / (static_cast<double>(own) * static_cast<double>(other));
    return square < 1.0 ? static_cast<float>(square) : 1.0f;
  }
};

}  // namespace tersekv::cuda
