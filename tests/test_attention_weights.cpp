// SPDX-License-Identifier: Apache-2.0
// Weights at the ends of float's range, beside logits at theirs.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "given_weights.hpp"
#include "support/random.hpp"
#include "tersekv/kv_cache.hpp"

using support::GivenWeights;
using support::Random;
using tersekv::Index;
using tersekv::KVCache;
using tersekv::nhd_view;

namespace {

struct Given {
  std::vector<float> logits, weights, values;
  float alpha = 1;
  Index size() const { return static_cast<Index>(logits.size()); }
};

/// Of one query row: output, normaliser and attention per entry.
struct Result {
  double out = 0, lse = 0;
  std::vector<double> attention;
};

/// One KV head of one dimension whose keys are the logits, by the last of `tokens` rows or by the
/// one before it, which does not see the last entry.
Result attended(const Given& given, Index hidden) {
  const Index n = given.size(), rows = hidden + 1;
  // Keys of moderate size, and queries for the rest.
  float unit = 1;
  for (const float l : given.logits) unit = std::abs(l) > 1e6f ? 1e6f : unit;
  std::vector<float> keys(given.logits), queries(static_cast<std::size_t>(rows), unit);
  for (float& k : keys) k /= unit;
  GivenWeights policy;
  policy.exponent = given.alpha;
  KVCache<GivenWeights> cache(
      {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1, .scale = 1.0f, .page_size = 16}, policy);
  cache.append(0, nhd_view(keys.data(), n, 1, 1), nhd_view(given.values.data(), n, 1, 1),
               {given.weights.data(), 1, 1});
  std::vector<float> out(queries), lse(queries), attention(static_cast<std::size_t>(rows * n));
  cache.attend(0, nhd_view<const float>(queries.data(), rows, 1, 1),
               nhd_view(out.data(), rows, 1, 1),
               {.lse = lse.data(), .rows = {attention.data(), rows, n, n}});
  // Without rows of attention several tokens are worked on at a time: the same output.
  std::vector<float> again(out);
  cache.attend(0, nhd_view<const float>(queries.data(), rows, 1, 1),
               nhd_view(again.data(), rows, 1, 1));
  CHECK(again == out);
  return {static_cast<double>(out[0]), static_cast<double>(lse[0]),
          std::vector<double>(attention.begin(), attention.begin() + (n - hidden))};
}

Result expected(const Given& given, Index hidden) {
  const std::size_t n = static_cast<std::size_t>(given.size() - hidden);
  std::vector<double> terms(n);
  for (std::size_t i = 0; i < n; ++i) {
    terms[i] = static_cast<double>(given.logits[i]) +
               static_cast<double>(given.alpha) * std::log(static_cast<double>(given.weights[i]));
  }
  const double highest = *std::max_element(terms.begin(), terms.end());
  double mass = 0;
  for (double& term : terms) mass += term = std::exp(term - highest);
  Result result{0, highest + std::log(mass), {}};
  for (std::size_t i = 0; i < n; ++i) {
    result.attention.push_back(terms[i] / mass);
    result.out += terms[i] / mass * static_cast<double>(given.values[i]);
  }
  return result;
}

void agree(const Given& given, Index hidden = 0) {
  const Result got = attended(given, hidden), want = expected(given, hidden);
  INFO("alpha " << given.alpha << ", first logit " << given.logits[0] << ", first weight "
                << given.weights[0] << ", output " << got.out << ", expected " << want.out);
  CHECK(std::abs(got.out - want.out) <= 2e-5 * std::abs(want.out) + 1e-30);
  CHECK(std::abs(got.lse - want.lse) <= 2e-6 * std::abs(want.lse) + 1e-6);
  for (std::size_t i = 0; i < want.attention.size(); ++i) {
    CHECK(std::abs(got.attention[i] - want.attention[i]) <= 2e-5 * want.attention[i] + 1e-30);
  }
}

}  // namespace

TEST_CASE("attention is right however small all weights are, in tiles of any length") {
  for (const Index n : {2, 5, 15, 16, 17, 31}) {
    for (const auto& [weight, alpha] : {std::pair{1e-37f, 1.0f},
                                        {1e-35f, 1.0f},
                                        {1e-30f, 1.0f},
                                        {1e-18f, 2.0f},
                                        {1e-20f, 2.0f}}) {
      Given given{std::vector<float>(static_cast<std::size_t>(n), -15.0f),
                  std::vector<float>(static_cast<std::size_t>(n), weight),
                  std::vector<float>(static_cast<std::size_t>(n), 1.0f), alpha};
      given.logits[0] = 0;
      given.values[0] = 0;
      agree(given);
    }
  }
  agree({{90, 0, -1}, {1e-36f, 1, 1}, {0, 1, 2}});
}

TEST_CASE("a row does not know the weights of entries that it does not see") {
  for (const float weight : {1.0f, 1e10f, 1e30f, 1e37f, 3e38f}) {
    agree({{0, -40, 0}, {1, 1, weight}, {0, 1, 0}}, 1);
    agree({{0, -10, 0}, {1, 1, weight}, {0, 1, 0}}, 1);
  }
  agree({{0, -10, 0}, {1, 1, 1e19f}, {0, 1, 0}, 2.0f}, 1);
}

TEST_CASE("a weight that needs more care changes no bit of what is equal elsewhere") {
  Given given{{}, {}, {}};
  Random random(11);
  INFO(random);
  const std::size_t half = 256;  // a section, and in it there is one such weight
  for (std::size_t i = 0; i < half; ++i) {
    given.logits.push_back(random.uniform(-30, 0));
    given.weights.push_back(random.uniform(0.5f, 8));
    given.values.push_back(1);
  }
  for (auto* each : {&given.logits, &given.weights, &given.values}) {
    const std::vector<float> once(*each);
    each->insert(each->end(), once.begin(), once.end());
  }
  for (const auto& [weight, logit] : {std::pair{1e20f, -60.0f}, {1e-20f, 1.0f}, {0x1p41f, 0.0f}}) {
    given.weights[5] = weight;
    given.logits[5] = logit;
    const Result got = attended(given, 0);
    for (std::size_t i = 0; i < half; ++i) {
      if (i != 5) CHECK(got.attention[i] == got.attention[i + half]);
    }
    agree(given);
  }
}

TEST_CASE("huge weights beside huge logits overflow nothing") {
  agree({{4e9f, 4e9f}, {1e30f, 1e30f}, {1e9f, 1e9f}});
  agree({{1e12f, 1e12f}, {1e20f, 1e20f}, {1, 1}, 2.0f});
  agree({{1e12f, 1e12f}, {1e30f, 1e30f}, {1, 1}, 2.0f});
  agree({{1e9f, 1e9f}, {2e9f, 1}, {1, 2}});  // and tokens of any number still count
}
