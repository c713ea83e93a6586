// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <tersekv/tersekv.hpp>

// The axes of all benchmarks. One thread; a step is one token of one sequence.
namespace tersekv::bench {

inline constexpr std::uint64_t kSeed = 20261121;

/// KV heads, query heads per KV head, head_dim.
struct Heads {
  Index kv, group, dim;
};
inline constexpr std::array<Heads, 2> kHeads{{{3, 3, 64},     // SmolLM2-135M
                                              {8, 4, 128}}};  // Llama 3 8B
inline constexpr std::array<Index, 3> kContexts{1024, 4096, 32768};
inline constexpr std::array<Index, 2> kBudgetPercents{10, 25};
inline constexpr std::array<Index, 2> kChunks{64, 512};

/// f.template operator()<T>() for every element type.
template <class F>
void for_each_element(F&& f) {
  f.template operator()<float>();
  f.template operator()<Half>();
  f.template operator()<BFloat16>();
}

/// One point on the axes.
struct Case {
  Heads heads;
  Index context;               ///< tokens seen; what Full holds
  Index budget = kUnlimited;   ///< entries per KV head
  Index bytes_of_element = 4;  ///< of K and of V

  Index entry_bytes() const { return 2 * heads.kv * heads.dim * bytes_of_element; }
  /// An engine comes back to a layer only after all others, so a benchmark goes round as many
  /// layers as give the full cache 64 MiB, at most 32; no core's own cache holds that. A compressed
  /// cache is measured with as many layers as the full one at its context.
  Index layers() const {
    const Index bytes = context * entry_bytes();
    return std::clamp<Index>(((Index{64} << 20) + bytes - 1) / bytes, 1, 32);
  }
  /// The same context, uncompressed.
  Case full() const { return {heads, context, kUnlimited, bytes_of_element}; }
  CacheConfig config() const {
    return {.num_q_heads = heads.kv * heads.group,
            .num_kv_heads = heads.kv,
            .head_dim = heads.dim,
            .budget = budget};
  }
  /// "float32/3x3x64/context:4096/budget:410"
  std::string name(const std::string& element) const {
    std::string text = element + "/" + std::to_string(heads.kv) + "x" +
                       std::to_string(heads.group) + "x" + std::to_string(heads.dim) +
                       "/context:" + std::to_string(context);
    if (budget != kUnlimited) text += "/budget:" + std::to_string(budget);
    return text;
  }
};

}  // namespace tersekv::bench
