// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cache_under_test.hpp"
#include "support/compare.hpp"
#include "support/golden.hpp"

namespace support {

/// A golden trace fed to a cache: the prompt as one chunk, then one token per step. Outputs are
/// compared on the way.
template <class PolicyType>
class GoldenTrace {
 public:
  using Index = tersekv::Index;

  GoldenTrace(const GoldenCase& golden, PolicyType policy, Index budget)
      : golden_(golden),
        q_(golden.floats("q")),
        single_(q_.shape.size() == 3),  // [token, group, d]: a case of a single KV head
        cache_({.num_q_heads = single_ ? q_.dim(1) : q_.dim(1) * q_.dim(2),
                .num_kv_heads = single_ ? 1 : q_.dim(1),
                .head_dim = q_.shape.back(),
                .budget = budget,
                .page_size = 16},
               std::move(policy)) {}

  Index kv_heads() const { return cache_.config().num_kv_heads; }
  Index steps() const { return q_.dim(0) - prompt_length(); }
  CacheUnderTest<PolicyType>& cache() { return cache_; }

  void prompt() { extend(0, prompt_length(), "prompt_output", 0); }
  void step(Index step) { extend(prompt_length() + step, 1, "step_output", step); }

  std::vector<Index> positions(Index kv_head) {
    std::vector<Index> result;
    for (const tersekv::Entry& entry : cache_.entries(0, kv_head)) {
      result.push_back(entry.position);
    }
    return result;
  }

 private:
  Index prompt_length() const { return golden_.template setting<Index>("prompt_length"); }

  void extend(Index first, Index tokens, const std::string& tensor, Index row) {
    const auto& config = cache_.config();
    const Index q_heads = config.num_q_heads, dim = config.head_dim;
    std::vector<float> out(static_cast<std::size_t>(tokens * q_heads * dim));
    cache_.extend(
        tersekv::nhd_view(q_.row(first), tokens, q_heads, dim),
        tersekv::nhd_view(golden_.floats("k").row(first), tokens, config.num_kv_heads, dim),
        tersekv::nhd_view(golden_.floats("v").row(first), tokens, config.num_kv_heads, dim),
        tersekv::nhd_view(out.data(), tokens, q_heads, dim));
    if (!golden_.has(tensor)) return;
    const float* want = golden_.floats(tensor).row(row);
    const auto [relative, absolute] = golden_.tolerance();
    CHECK(close_all(out, std::vector<float>(want, want + out.size()), relative, absolute));
  }

  const GoldenCase& golden_;
  const Tensor<float>& q_;
  bool single_;
  CacheUnderTest<PolicyType> cache_;
};

/// Row `leading...` of an index tensor up to its padding.
template <class... I>
std::vector<Integer> unpadded(const Tensor<Integer>& tensor, I... leading) {
  std::vector<Integer> indices;
  for (Integer index : tensor.vector(leading...)) {
    if (index != -1) indices.push_back(index);
  }
  return indices;
}

}  // namespace support
