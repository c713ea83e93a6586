// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include "../support/compare.hpp"
#include "../support/golden.hpp"
#include "kvzap.hpp"

using reference::Layer;
using reference::Token;
using reference::Vector;
using support::GoldenCase;
using support::Integer;

namespace {

/// A layer of the surrogate, from tensors that have a leading model-layer axis or none.
template <class... I>
Layer read_layer(const GoldenCase& golden, const std::string& suffix, I... model_layer) {
  const auto& bias = golden.floats("b" + suffix);
  Layer layer{{}, bias.vector<double>(model_layer...)};
  for (Integer out = 0; out < bias.shape.back(); ++out)
    layer.weight.push_back(golden.floats("w" + suffix).vector<double>(model_layer..., out));
  return layer;
}

template <class... I>
std::vector<Layer> read_surrogate(const GoldenCase& golden, I... model_layer) {
  if (golden.has("w")) return {read_layer(golden, "", model_layer...)};
  return {read_layer(golden, "1", model_layer...), read_layer(golden, "2", model_layer...)};
}

/// Call after whose compression each token was gone: 0 the prompt, s decode step s, -1 never.
std::vector<Integer> eviction_calls(const GoldenCase& golden, const std::vector<Vector>& scores,
                                    std::size_t kv_head) {
  auto head =
      reference::make_head<reference::KVzap>({.threshold = golden.setting<double>("threshold"),
                                              .window = golden.setting<Integer>("window")});
  std::vector<Token> tokens;
  for (const Vector& score : scores) tokens.push_back({{{1.0}}, {0.0}, {0.0}, score[kv_head]});
  const auto prompt = golden.setting<std::ptrdiff_t>("prompt_length");
  std::vector<Integer> calls(tokens.size(), -1);
  auto record = [&, recorded = std::size_t{0}](Integer call) mutable {
    for (; recorded < head.events().size(); ++recorded)
      calls[static_cast<std::size_t>(head.events()[recorded].victim)] = call;
  };
  head.extend({tokens.begin(), tokens.begin() + prompt});
  record(0);
  for (std::ptrdiff_t t = prompt; t < std::ssize(tokens); ++t) {
    head.extend({tokens[static_cast<std::size_t>(t)]});
    record(t - prompt + 1);
  }
  return calls;
}

}  // namespace

TEST_CASE("reference surrogates agree with the golden log-scores", "[reference][golden]") {
  for (const char* name : {"kvzap_linear", "kvzap_mlp"}) {
    INFO(name);
    const GoldenCase golden(name);
    const auto [relative, absolute] = golden.tolerance();
    for (Integer layer = 0; layer < golden.setting<Integer>("layers"); ++layer) {
      const auto surrogate = read_surrogate(golden, layer);
      for (Integer t = 0; t < golden.setting<Integer>("tokens"); ++t) {
        const Vector got =
            reference::surrogate_scores(surrogate, golden.floats("h").vector<double>(layer, t));
        REQUIRE(std::ssize(got) == golden.setting<Integer>("num_kv_heads"));
        for (Integer h = 0; h < std::ssize(got); ++h)
          CHECK(support::close(got[static_cast<std::size_t>(h)],
                               golden.floats("scores")(layer, h, t), relative, absolute));
      }
    }
  }
}

TEST_CASE("reference KVzap evicts when the golden traces do", "[reference][golden]") {
  for (const std::string& name : support::golden_cases("kvzap_threshold")) {
    INFO(name);
    const GoldenCase golden(name);
    const auto [relative, absolute] = golden.tolerance();
    const auto surrogate = read_surrogate(golden);
    std::vector<Vector> scores;
    for (Integer t = 0; t < golden.floats("h").dim(0); ++t)
      scores.push_back(
          reference::surrogate_scores(surrogate, golden.floats("h").vector<double>(t)));
    for (Integer h = 0; h < golden.setting<Integer>("num_kv_heads"); ++h) {
      for (Integer t = 0; t < std::ssize(scores); ++t)
        CHECK(support::close(scores[static_cast<std::size_t>(t)][static_cast<std::size_t>(h)],
                             golden.floats("scores")(h, t), relative, absolute));
      CHECK(support::same_indices(eviction_calls(golden, scores, static_cast<std::size_t>(h)),
                                  golden.integers("evicted_at").vector(h)));
    }
  }
}
