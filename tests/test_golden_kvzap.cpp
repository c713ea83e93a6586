// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "cache_under_test.hpp"
#include "support/compare.hpp"
#include "support/golden.hpp"
#include "tersekv/kv_cache.hpp"
#include "tersekv/policies/kvzap.hpp"
#include "tersekv/surrogate.hpp"

using support::close;
using support::GoldenCase;
using tersekv::Index;
using tersekv::Surrogate;

namespace {

/// A layer of the surrogate, from tensors that have a leading model-layer axis or none.
template <class... I>
tersekv::LinearView layer(const GoldenCase& golden, const std::string& suffix, I... model_layer) {
  const auto& weight = golden.floats("w" + suffix);
  const Index outputs = weight.shape[weight.shape.size() - 2];
  return {weight.row(model_layer...), golden.floats("b" + suffix).row(model_layer...), outputs,
          weight.shape.back()};
}

template <class... I>
Surrogate read_surrogate(const GoldenCase& golden, I... model_layer) {
  if (golden.has("w")) return Surrogate(layer(golden, "", model_layer...));
  return Surrogate(layer(golden, "1", model_layer...), layer(golden, "2", model_layer...));
}

/// scores[token, kv_head] for the hidden states of a case.
template <class... I>
std::vector<float> predict(const GoldenCase& golden, Index tokens, I... model_layer) {
  const Surrogate surrogate = read_surrogate(golden, model_layer...);
  REQUIRE(surrogate.num_kv_heads() == golden.setting<Index>("num_kv_heads"));
  REQUIRE(surrogate.model_dim() == golden.setting<Index>("model_dim"));
  REQUIRE(surrogate.hidden_dim() == golden.setting<Index>("hidden_dim"));
  std::vector<float> scores(static_cast<std::size_t>(tokens * surrogate.num_kv_heads()));
  surrogate.predict(golden.floats("h").row(model_layer...), tokens, surrogate.model_dim(),
                    scores.data());
  return scores;
}

void replay(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto kv_heads = golden.setting<Index>("num_kv_heads");
  const auto prompt = golden.setting<Index>("prompt_length");
  const Index tokens = golden.floats("h").dim(0), dim = 4;
  const auto scores = predict(golden, tokens);
  for (Index h = 0; h < kv_heads; ++h) {
    for (Index t = 0; t < tokens; ++t) {
      CHECK(close(scores[static_cast<std::size_t>(t * kv_heads + h)], golden.floats("scores")(h, t),
                  relative, absolute));
    }
  }

  support::CacheUnderTest<tersekv::KVzap> cache(
      {.num_q_heads = kv_heads, .num_kv_heads = kv_heads, .head_dim = dim, .page_size = 16},
      tersekv::make_kvzap({.threshold = golden.setting<float>("threshold"),
                           .window = golden.setting<Index>("window")}));
  const std::vector<float> rows(static_cast<std::size_t>(tokens * kv_heads * dim), 0.5f);
  std::vector<float> out(rows.size());
  for (Index call = 0; call <= golden.setting<Index>("decode_steps"); ++call) {
    INFO("call " << call);
    const Index first = call == 0 ? 0 : prompt + call - 1, count = call == 0 ? prompt : 1;
    const auto view = tersekv::nhd_view(rows.data(), count, kv_heads, dim);
    cache.extend(
        tersekv::Chunk<float>{.q = view,
                              .k = view,
                              .v = view,
                              .out = tersekv::nhd_view(out.data(), count, kv_heads, dim),
                              .token_scores = {scores.data() + first * kv_heads, kv_heads}});
    for (Index h = 0; h < kv_heads; ++h) {
      std::vector<Index> live, want;
      for (const tersekv::Entry& entry : cache.entries(0, h)) live.push_back(entry.position);
      for (Index t = 0; t < first + count; ++t) {
        const Index evicted = golden.integers("evicted_at")(h, t);
        if (evicted == -1 || evicted > call) want.push_back(t);
      }
      CHECK(support::same_indices(live, want));
      CHECK(cache.counts(0, h).evictions == first + count - std::ssize(want));
    }
  }
}

}  // namespace

TEST_CASE("surrogates agree with the golden log-scores", "[golden]") {
  support::require_device();
  for (const char* name : {"kvzap_linear", "kvzap_mlp"}) {
    INFO(name);
    const GoldenCase golden(name);
    const auto [relative, absolute] = golden.tolerance();
    const auto tokens = golden.setting<Index>("tokens");
    for (Index model_layer = 0; model_layer < golden.setting<Index>("layers"); ++model_layer) {
      const auto scores = predict(golden, tokens, model_layer);
      const auto kv_heads = golden.setting<Index>("num_kv_heads");
      for (Index t = 0; t < tokens; ++t) {
        for (Index h = 0; h < kv_heads; ++h) {
          CHECK(close(scores[static_cast<std::size_t>(t * kv_heads + h)],
                      golden.floats("scores")(model_layer, h, t), relative, absolute));
        }
      }
    }
  }
}

TEST_CASE("KVzap evicts when the golden traces do", "[golden]") {
  support::require_device();
  for (const std::string& name : support::golden_cases("kvzap_threshold")) {
    INFO(name);
    replay(GoldenCase(name));
  }
}
