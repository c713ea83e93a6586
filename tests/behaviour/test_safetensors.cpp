// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <string>
#include <tersekv/safetensors.hpp>
#include <vector>

#include "refusal.hpp"
#include "support/compare.hpp"
#include "written_safetensors.hpp"

// Surrogates from good safetensors files, in every type.

namespace {

using namespace tersekv;
using namespace written;
using support::refused;

TEST_CASE("safetensors: tensors of every type are read as floats") {
  for (const std::string type : {"F32", "F16", "BF16"}) {
    CAPTURE(type);
    const TemporaryFile saved(linear_file(type));
    const SafetensorsFile file(saved.path());
    CHECK(file.contains("layers.0.bias"));
    CHECK_FALSE(file.contains("layers.1.bias"));
    const auto weight = file.tensor("layers.0.weight");
    CHECK(weight.shape == std::vector<Index>{2, 3});
    CHECK(weight.data == kWeight);
    CHECK(file.tensor("layers.0.bias").data == kBias);
    if (type == "F32") CHECK(file.tensor("__metadata__x").shape.empty());
    CHECK_THROWS_AS(file.tensor("layers.1.bias"), std::runtime_error);
  }
}

TEST_CASE("safetensors: a linear surrogate is W h + b") {
  const TemporaryFile saved(linear_file("F16"));
  SurrogateSet read = load_surrogates(saved.path());
  const SurrogateSet set = std::move(read);  // the weights stay where they are
  REQUIRE(set.size() == 1);
  const Surrogate& layer = set.layer(0);
  CHECK_FALSE(layer.is_mlp());
  CHECK(layer.model_dim() == 3);
  CHECK(layer.num_kv_heads() == 2);
  const std::vector<float> hidden = {1, 2, 3, 9, -1, 0, 2, 9};
  float scores[4];
  layer.predict(hidden.data(), 2, 4, scores);
  CHECK(std::vector<float>(scores, scores + 4) == std::vector<float>{0, 0.25f, 1.5f, -7.5f});
  CHECK(refused([&] { set.layer(1); }, {"layer", "0 to 0", "got 1"}));
  CHECK(refused([&] { set.layer(-1); }, {"layer", "got -1"}));
}

TEST_CASE("safetensors: an MLP surrogate is W2 gelu(W1 h + b1) + b2, layer by layer") {
  Builder builder;
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    const float sign = layer == "layers.0." ? 1.0f : -1.0f;
    builder.add(layer + "0.weight", "F32", "[2,3]", bytes_of<float>(kWeight));
    builder.add(layer + "0.bias", "F32", "[2]", bytes_of<float>(kBias));
    builder.add(layer + "2.weight", "BF16", "[1,2]", bytes_of<BFloat16>({2 * sign, -1}));
    builder.add(layer + "2.bias", "F16", "[1]", bytes_of<Half>({0.5f}));
  }
  const TemporaryFile saved(builder.file());
  const SurrogateSet set(saved.path());
  REQUIRE(set.size() == 2);
  const std::vector<float> hidden = {1, 0.5f, -1};
  const double inner[] = {1 - 1 - 0.5 + 1.5, 4 + 0.25 - 3};
  const auto gelu = [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); };
  for (Index i = 0; i < 2; ++i) {
    const Surrogate& layer = set.layer(i);
    CHECK(layer.is_mlp());
    CHECK(layer.hidden_dim() == 2);
    CHECK(layer.model_dim() == 3);
    float score = 0;
    layer.predict(hidden.data(), 1, 3, &score);
    const double want = (i == 0 ? 2 : -2) * gelu(inner[0]) - gelu(inner[1]) + 0.5;
    CHECK(support::close(score, want, 1e-6, 1e-6));
  }
}

}  // namespace
