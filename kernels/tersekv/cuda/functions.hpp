// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/checks.hpp"
#include "tersekv/cuda/body/similarity.hpp"
#include "tersekv/cuda/body/surrogate.hpp"
#include "tersekv/cuda/plan.hpp"
#include "tersekv/errors.hpp"

// Kernels of use beside a cache. Pointers and views are of device memory; all calls are
// asynchronous, allocate nothing, and throw std::invalid_argument before anything is launched.

namespace tersekv::cuda {

/// Which of a head's targets is most similar to each candidate key: `nearest` [heads, candidates]
/// gets its index, or -1 where no target is `eligible` ([heads, targets], null: all), and
/// `similarities`, if not null, the cosine or dot product. Ties go to the lower of `positions`
/// ([heads, targets]; null: the index). O(candidates targets head_dim).
template <class Runtime, Element T>
void most_similar(const TokenView<const T>& candidates, const TokenView<const T>& targets,
                  Similarity similarity, std::int32_t* nearest, float* similarities = nullptr,
                  const std::int32_t* positions = nullptr, const std::uint8_t* eligible = nullptr,
                  typename Runtime::Stream stream = {}) {
  detail::check_extents("candidates", candidates, candidates.tokens, targets.heads,
                        targets.head_dim);
  detail::check_extents("targets", targets, targets.tokens, candidates.heads, candidates.head_dim);
  detail::require(targets.tokens <= kMostTokens, "targets", "fewer than 2^31", targets.tokens);
  detail::require(candidates.tokens <= kMostTokens, "candidates", "fewer than 2^31",
                  candidates.tokens);
  detail::require(candidates.heads <= kMostHeads, "heads of candidates", "at most 65535",
                  candidates.heads);
  if (candidates.tokens == 0 || candidates.heads == 0) return;
  if (nearest == nullptr)
    detail::refuse({"nearest"}, {"room for an index per candidate"}, {"null"});
  using Body = SimilarityBody<T, Runtime::kAppendThreads>;
  typename Body::Args args;
  args.candidates = candidates;
  args.targets = targets;
  args.similarity = similarity;
  args.positions = positions;
  args.eligible = eligible;
  args.nearest = nearest;
  args.similarities = similarities;
  Runtime::template launch<Body>(
      Grid{static_cast<int>(candidates.tokens), static_cast<int>(candidates.heads)}, 1, nullptr,
      stream, args);
}

/// scores[t, h] of `tokens` hidden states, `row_stride` apart, by a surrogate whose weights lie in
/// device memory; `second` alone is a linear one: pass `first` as {}. In one launch. Up to 8192
/// outputs of the first layer. O(tokens weights).
template <class Runtime, Element T>
void predict_scores(const LinearView& first, const LinearView& second, const T* hidden,
                    Index tokens, Index row_stride, float* scores,
                    typename Runtime::Stream stream = {}) {
  using Body = SurrogateBody<T, Runtime::kTeamThreads>;
  const bool is_mlp = first.outputs > 0;
  const auto check_layer = [](const char* name, const LinearView& layer) {
    if (layer.weight != nullptr && layer.bias != nullptr && layer.outputs > 0 && layer.inputs > 0) {
      return;
    }
    detail::refuse({"surrogate: layer ", name}, {"weight, bias and extents of at least 1"},
                   {"less"});
  };
  check_layer("second", second);
  if (is_mlp) {
    check_layer("first", first);
    detail::require_equal("surrogate: inputs of the second layer", second.inputs, first.outputs);
    detail::require(first.outputs <= Body::kMostInner, "surrogate: outputs of the first layer",
                    "at most 8192", first.outputs);
  }
  detail::require(tokens >= 0 && tokens <= kMostTokens, "tokens", "0 or more, below 2^31", tokens);
  if (tokens == 0) return;
  if (hidden == nullptr || scores == nullptr) {
    detail::refuse({"surrogate: hidden and scores"}, {"device memory"}, {"null"});
  }
  typename Body::Args args;
  args.first = first;
  args.second = second;
  args.hidden = hidden;
  args.row_stride = row_stride;
  args.scores = scores;
  Runtime::template launch<Body>(Grid{static_cast<int>(tokens)}, 1, nullptr, stream, args);
}

}  // namespace tersekv::cuda
