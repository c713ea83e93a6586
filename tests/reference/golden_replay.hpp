// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "../support/compare.hpp"
#include "../support/golden.hpp"
#include "head.hpp"

/// The tokens of one KV head of a golden trace: a prompt, then one token per decode step.
class GoldenTokens {
 public:
  GoldenTokens(const support::GoldenCase& golden, support::Integer kv_head)
      : prompt_length_(golden.setting<support::Integer>("prompt_length")) {
    const auto& q = golden.floats("q");
    // [token, kv_head, group, d], or [token, group, d] where the case has a single KV head.
    const bool single = q.shape.size() == 3;
    const support::Integer kv_heads = single ? 1 : q.dim(1);
    tokens_ = reference::make_tokens(q.data.data(), golden.floats("k").data.data(),
                                     golden.floats("v").data.data(), q.dim(0), kv_heads,
                                     q.dim(single ? 1 : 2), q.shape.back(), kv_head);
  }

  support::Integer steps() const { return std::ssize(tokens_) - prompt_length_; }
  std::vector<reference::Token> prompt() const {
    return {tokens_.begin(), tokens_.begin() + prompt_length_};
  }
  std::vector<reference::Token> step(support::Integer step) const {
    return {tokens_.at(static_cast<std::size_t>(prompt_length_ + step))};
  }

 private:
  support::Integer prompt_length_;
  std::vector<reference::Token> tokens_;
};

/// Row `leading...` of an index tensor up to its padding.
template <class... I>
std::vector<support::Integer> without_padding(const support::Tensor<support::Integer>& tensor,
                                              I... leading) {
  std::vector<support::Integer> indices;
  for (support::Integer index : tensor.vector(leading...))
    if (index != -1) indices.push_back(index);
  return indices;
}

/// Rows `first`, `first + 1`, ... of an output tensor [row, kv_head, group, d] or [row, group, d].
inline void check_outputs(const support::GoldenCase& golden, const std::string& tensor,
                          support::Integer first, support::Integer kv_head,
                          const std::vector<reference::TokenOutput>& got) {
  const auto [relative, absolute] = golden.tolerance();
  const auto& want = golden.floats(tensor);
  for (std::size_t t = 0; t < got.size(); ++t) {
    const auto row = first + static_cast<support::Integer>(t);
    for (std::size_t g = 0; g < got[t].outputs.size(); ++g) {
      const auto head = static_cast<support::Integer>(g);
      CHECK(support::close_all(
          got[t].outputs[g],
          want.shape.size() == 4 ? want.vector(row, kv_head, head) : want.vector(row, head),
          relative, absolute));
    }
  }
}
