// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "refusal.hpp"
#include "support/compare.hpp"
#include "support/golden.hpp"
#include "support/random.hpp"
#include "tersekv/cuda/functions.hpp"

// Merge selection and KVzap's surrogate as kernels of their own.

using namespace tersekv;
using on_device::Array;
using on_device::Runtime;
using support::Random;
using tersekv::cuda::Similarity;

namespace {

struct Keys {
  Index heads, dim, targets, candidates;
  std::vector<float> target, candidate;  // [keys, heads, dim]
  std::vector<std::int32_t> positions;   // [heads, targets]
  std::vector<std::uint8_t> eligible;

  /// Keys that repeat, so that ties are the rule; multiples of 1/8, so that products are exact.
  Keys(Random& random, Index h, Index d, Index t, Index c)
      : heads(h), dim(d), targets(t), candidates(c) {
    for (Index i = 0; i < t * h * d; ++i) target.push_back(std::round(random.normal() * 8) / 8);
    const Index row = h * d;
    for (Index i = 1; i < t; ++i) {
      if (!random.chance(0.5)) continue;
      std::copy_n(target.begin() + random.integer(0, i - 1) * row, row, target.begin() + i * row);
    }
    for (Index i = 0; i < c * row; ++i) candidate.push_back(std::round(random.normal() * 8) / 8);
    std::copy_n(target.begin(), row, candidate.begin());  // equal to a target
    for (Index i = 0; i < d; ++i) candidate[static_cast<std::size_t>(row + i)] = 0;  // a zero key
    for (Index i = 0; i < h * t; ++i) {
      positions.push_back(static_cast<std::int32_t>(i * 7919 % 1009));
      eligible.push_back(random.chance(0.8) ? 1 : 0);
    }
  }
  double product(const std::vector<float>& a, Index i, const std::vector<float>& b, Index j,
                 Index h) const {
    double sum = 0;
    for (Index d = 0; d < dim; ++d) {
      sum += static_cast<double>(a[static_cast<std::size_t>((i * heads + h) * dim + d)]) *
             static_cast<double>(b[static_cast<std::size_t>((j * heads + h) * dim + d)]);
    }
    return sum;
  }
  double similarity(Similarity how, Index c, Index t, Index h) const {
    const double dot = product(candidate, c, target, t, h);
    if (how == Similarity::dot) return dot;
    const double norms = product(candidate, c, candidate, c, h) * product(target, t, target, t, h);
    return norms > 0 ? dot / std::sqrt(norms) : 0;
  }
};

/// A layer of a golden surrogate in device memory; without arguments, none.
struct Layer {
  Array<float> weight{0}, bias{0};
  Index outputs = 0, inputs = 0;

  Layer() = default;
  Layer(const support::GoldenCase& golden, const std::string& suffix, Index layer) {
    const auto& w = golden.floats("w" + suffix);
    outputs = w.shape[w.shape.size() - 2];
    inputs = w.shape.back();
    const float *of_weight = w.row(layer), *of_bias = golden.floats("b" + suffix).row(layer);
    weight = Array<float>(std::vector<float>(of_weight, of_weight + outputs * inputs));
    bias = Array<float>(std::vector<float>(of_bias, of_bias + outputs));
  }
  LinearView view() const { return {weight.data(), bias.data(), outputs, inputs}; }
};

}  // namespace

TEST_CASE("most_similar names the most similar target, ties by position", "[small]") {
  on_device::require_device();
  Random random(1);
  int ties = 0;
  for (const Index targets : {1, 5, 90}) {
    const Keys keys(random, 2, 8, targets, 4);
    const Array<float> target(keys.target), candidate(keys.candidate);
    const Array<std::int32_t> positions(keys.positions), nearest(2 * 4, -9);
    const Array<std::uint8_t> eligible(keys.eligible);
    const Array<float> similarities(2 * 4, -9.0f);
    const float *of_candidates = candidate.data(), *of_targets = target.data();
    for (const Similarity how : {Similarity::dot, Similarity::cosine}) {
      tersekv::cuda::most_similar<Runtime, float>(
          nhd_view(of_candidates, 4, 2, 8), nhd_view(of_targets, targets, 2, 8), how,
          nearest.data(), similarities.data(), positions.data(), eligible.data());
      const auto got = nearest.host();
      const auto got_similarity = similarities.host();
      for (Index h = 0; h < 2; ++h) {
        for (Index c = 0; c < 4; ++c) {
          Index best = -1;
          double highest = 0;
          for (Index t = 0; t < targets; ++t) {
            const auto at = static_cast<std::size_t>(h * targets + t);
            if (keys.eligible[at] == 0) continue;
            const double s = keys.similarity(how, c, t, h);
            const bool tie = best >= 0 && std::abs(s - highest) < 1e-12;
            ties += tie ? 1 : 0;
            if (best >= 0 && (tie ? keys.positions[at] >
                                        keys.positions[static_cast<std::size_t>(h * targets + best)]
                                  : s < highest)) {
              continue;
            }
            best = t;
            highest = s;
          }
          CAPTURE(targets, h, c, how == Similarity::dot);
          const auto at = static_cast<std::size_t>(h * 4 + c);
          CHECK(got[at] == best);
          CHECK(std::abs(static_cast<double>(got_similarity[at]) - highest) < 1e-5);
        }
      }
    }
  }
  CHECK(ties > 20);
}

TEST_CASE("most_similar refuses what does not fit") {
  const TokenView<const float> none{};
  std::int32_t nearest = 0;
  const float key[8] = {};
  CHECK(support::refused(
      [&] {
        tersekv::cuda::most_similar<Runtime, float>(nhd_view(key, 1, 1, 8), nhd_view(key, 1, 2, 4),
                                                    Similarity::dot, &nearest);
      },
      {"candidates: expected [1, 2, 4]"}));
  CHECK(support::refused(
      [&] {
        tersekv::cuda::most_similar<Runtime, float>(nhd_view(key, 1, 1, 8), nhd_view(key, 1, 1, 8),
                                                    Similarity::dot, nullptr);
      },
      {"nearest"}));
  CHECK(support::refused(
      [&] {
        const std::vector<float> keys(65536);
        const auto many = nhd_view(keys.data(), 1, 65536, 1);
        tersekv::cuda::most_similar<Runtime, float>(many, many, Similarity::dot, &nearest);
      },
      {"heads of candidates: expected at most 65535, got 65536"}));
  tersekv::cuda::most_similar<Runtime, float>(none, none, Similarity::dot, nullptr);
}

TEST_CASE("surrogates of a device agree with the golden log-scores", "[golden][small]") {
  on_device::require_device();
  for (const char* name : {"kvzap_linear", "kvzap_mlp"}) {
    INFO(name);
    const support::GoldenCase golden(name);
    const auto [relative, absolute] = golden.tolerance();
    const auto tokens = golden.setting<Index>("tokens"),
               heads = golden.setting<Index>("num_kv_heads"),
               dim = golden.setting<Index>("model_dim");
    for (Index layer = 0; layer < golden.setting<Index>("layers"); ++layer) {
      const Layer only(golden, golden.has("w") ? "" : "2", layer);
      const Layer first = golden.has("w") ? Layer() : Layer(golden, "1", layer);
      const float* from = golden.floats("h").row(layer);
      const Array<float> hidden(std::vector<float>(from, from + tokens * dim)),
          scores(tokens * heads, -99.0f);
      tersekv::cuda::predict_scores<Runtime, float>(first.view(), only.view(), hidden.data(),
                                                    tokens, dim, scores.data());
      const auto got = scores.host();
      for (Index t = 0; t < tokens; ++t) {
        for (Index h = 0; h < heads; ++h) {
          CHECK(support::close(got[static_cast<std::size_t>(t * heads + h)],
                               golden.floats("scores")(layer, h, t), relative, absolute));
        }
      }
    }
  }
}

TEST_CASE("a surrogate on a device is refused where its layers do not fit") {
  const float x[64] = {};
  float scores[4];
  const LinearView four{x, x, 4, 8}, two{x, x, 2, 5};
  CHECK(support::refused(
      [&] { tersekv::cuda::predict_scores<Runtime, float>(four, two, x, 1, 8, scores); },
      {"inputs of the second layer: expected 4, got 5"}));
  CHECK(support::refused(
      [&] {
        tersekv::cuda::predict_scores<Runtime, float>({}, {x, nullptr, 4, 8}, x, 1, 8, scores);
      },
      {"surrogate: layer second"}));
  const LinearView wide{x, x, 9000, 8}, of_wide{x, x, 2, 9000};
  CHECK(support::refused(
      [&] { tersekv::cuda::predict_scores<Runtime, float>(wide, of_wide, x, 1, 8, scores); },
      {"at most 8192, got 9000"}));
}
