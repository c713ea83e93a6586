// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "tersekv/c_math.hpp"
#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"

namespace tersekv {

/// A borrowed linear layer y = W x + b.
struct LinearView {
  const float* weight = nullptr;  ///< [outputs, inputs], row-major
  const float* bias = nullptr;    ///< [outputs]
  Index outputs = 0, inputs = 0;
};

/// KVzap's surrogate of one layer: from the hidden state h_t (the input of the attention module,
/// after its norm) to a predicted log-score for every KV head, either linear, W h + b, or an MLP,
/// W2 gelu(W1 h + b1) + b2 with the exact GELU. Borrows its weights; they must outlive it.
class Surrogate {
 public:
  explicit Surrogate(const LinearView& linear) : second_(linear) { check("linear", linear); }

  Surrogate(const LinearView& first, const LinearView& second) : first_(first), second_(second) {
    check("first", first);
    check("second", second);
    if (second.inputs != first.outputs) {
      detail::refuse({"surrogate: inputs of the second layer"}, {first.outputs}, {second.inputs});
    }
  }

  Index model_dim() const { return is_mlp() ? first_.inputs : second_.inputs; }
  Index hidden_dim() const { return first_.outputs; }  ///< 0 for a linear surrogate
  Index num_kv_heads() const { return second_.outputs; }
  bool is_mlp() const { return first_.outputs > 0; }

  /// scores[t, h] for `tokens` rows of [model_dim] floats, `row_stride` apart. What
  /// `Chunk::token_scores` takes: {scores, num_kv_heads()}. Allocates hidden_dim() floats for an
  /// MLP. O(tokens * weights).
  void predict(const float* hidden, Index tokens, Index row_stride, float* scores) const {
    std::vector<float> inner(static_cast<std::size_t>(first_.outputs));
    for (Index t = 0; t < tokens; ++t) {
      const float* x = hidden + t * row_stride;
      if (is_mlp()) {
        apply(first_, x, inner.data());
        for (float& y : inner) y = 0.5f * y * (1.0f + detail::erf(y * 0.70710678f));
        x = inner.data();
      }
      apply(second_, x, scores + t * num_kv_heads());
    }
  }

 private:
  static void check(const char* name, const LinearView& layer) {
    const auto given = [](const float* p) { return p == nullptr ? "null" : "given"; };
    if (layer.weight == nullptr || layer.bias == nullptr || layer.outputs < 1 || layer.inputs < 1) {
      detail::refuse({"surrogate: layer ", name}, {"weight, bias and extents of at least 1"},
                     {"weight ", given(layer.weight), ", bias ", given(layer.bias), ", [",
                      layer.outputs, ", ", layer.inputs, "]"});
    }
  }
  static void apply(const LinearView& layer, const float* x, float* y) {
    constexpr Index kSums = 16;  // independent, so that the compiler may vectorise
    for (Index o = 0; o < layer.outputs; ++o) {
      const float* w = layer.weight + o * layer.inputs;
      float sums[kSums] = {};
      for (Index i = 0; i < layer.inputs / kSums; ++i) {
        for (Index j = 0; j < kSums; ++j) sums[j] += w[i * kSums + j] * x[i * kSums + j];
      }
      float total = layer.bias[o];
      for (const float sum : sums) total += sum;
      for (Index i = layer.inputs / kSums * kSums; i < layer.inputs; ++i) total += w[i] * x[i];
      y[o] = total;
    }
  }

  LinearView first_, second_;
};

}  // namespace tersekv
