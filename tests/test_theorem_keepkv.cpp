// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/kv_cache.hpp"
#include "zip_head.hpp"

// KeepKV's Theorem 3 (one query head): merging with the current query's scores leaves that query's
// output and lse unchanged, for any votes and any number of merges in a row, under the key rules
// `scale` and `along_query`, and not under `mean`.

using support::close;
using support::close_all;
using support::Random;
using support::ZipHead;
using tersekv::Index;
using tersekv::KeyRule;

namespace {

constexpr Index kDim = 16;

/// Keys whose logits for `query` are spread around `centre`: `scale` divides by a mean logit, which
/// must not be close to zero for float to follow.
std::vector<float> key_near(Random& random, const std::vector<float>& query, float scale,
                            float centre) {
  double square = 0;
  for (float x : query) square += static_cast<double>(x) * x;
  auto key = random.normals(kDim);
  const double wanted = centre + 1.5 * random.unit();
  double logit = 0;
  for (std::size_t j = 0; j < key.size(); ++j)
    logit += scale * static_cast<double>(key[j]) * query[j];
  for (std::size_t j = 0; j < key.size(); ++j) {
    key[j] += static_cast<float>((wanted - logit) / (scale * square) * query[j]);
  }
  return key;
}

/// The largest change of lse in a chain of merges; outputs are compared where `exact`.
float chain(KeyRule rule, std::uint64_t seed, bool exact) {
  Random random(seed);
  const float scale = random.chance(0.5) ? 0.25f : 1.0f, centre = random.chance(0.5) ? 1.0f : -3.0f;
  const auto query = random.normals(kDim, random.uniform(0.5f, 3));
  ZipHead head(rule, kDim, scale);
  const Index entries = random.integer(3, 24);
  for (Index i = 0; i < entries; ++i) {
    head.push(key_near(random, query, scale, centre).data(), random.normals(kDim).data(),
              random.chance(0.5) ? 1.0f : static_cast<float>(random.integer(1, 500)));
  }
  const auto output = head.attend(query.data());
  const float lse = head.lse();
  head.predict(query.data());
  float largest = 0;
  while (head.head().length() > 2) {
    const Index n = head.head().length();
    const Index victim = random.integer(0, n - 1);
    const Index target = (victim + random.integer(1, n - 1)) % n;
    head.merge(victim, target);
    const auto now = head.attend(query.data());
    largest = std::max(largest, std::fabs(head.lse() - lse));
    if (exact) {
      CHECK(close_all(now, output, 2e-4, 2e-4));
      CHECK(close(head.lse(), lse, 1e-5, 5e-5));
    }
  }
  return largest;
}

/// One step of decoding after the other through a whole cache, whose predictions have no memory.
template <class PolicyType>
double largest_change(const PolicyType& policy, std::uint64_t seed, double& largest_gain) {
  Random random(seed);
  const float scale = 0.25f;
  tersekv::KVCache<PolicyType> cache(
      {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = kDim, .budget = 14, .scale = scale},
      policy);
  double largest = 0;
  for (int step = 0; step < 25; ++step) {
    const Index tokens = step == 0 ? 20 : random.integer(1, 3);
    // All queries point into one half space, so that logits stay away from zero.
    auto query = random.normals(kDim, 0.2);
    for (float& x : query) x += 1.0f;
    std::vector<float> keys;
    for (Index t = 0; t < tokens; ++t) {
      const auto key = key_near(random, query, scale, 1.5f);
      keys.insert(keys.end(), key.begin(), key.end());
    }
    const auto values = random.normals(tokens * kDim);
    cache.append(0, tersekv::nhd_view(keys.data(), tokens, 1, kDim),
                 tersekv::nhd_view(values.data(), tokens, 1, kDim));
    const auto q = tersekv::nhd_view<const float>(query.data(), 1, 1, kDim);
    std::vector<float> before(kDim), after(kDim);
    float lse_before = 0, lse_after = 0;
    cache.attend(0, q, tersekv::nhd_view(before.data(), 1, 1, kDim), {.lse = &lse_before});
    cache.observe(0, q);
    cache.compress(0);
    CHECK(cache.length(0, 0) == 14);
    cache.attend(0, q, tersekv::nhd_view(after.data(), 1, 1, kDim), {.lse = &lse_after});
    REQUIRE(support::is_finite(lse_before));
    REQUIRE(support::is_finite(lse_after));
    for (std::size_t j = 0; j < before.size(); ++j) {
      REQUIRE(support::is_finite(after[j]));
      largest = std::max(largest, std::fabs(static_cast<double>(after[j]) - before[j]));
    }
    largest = std::max(largest, std::fabs(static_cast<double>(lse_after) - lse_before));
    largest_gain = std::max(largest_gain, static_cast<double>(lse_after) - lse_before);
  }
  return largest;
}

constexpr float kNoMemory = 1e-6f;

}  // namespace

TEST_CASE("Theorem 3 holds for chains of ZIP merges under scale and along_query") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    chain(KeyRule::scale, seed, true);
    chain(KeyRule::along_query, seed, true);
  }
}

TEST_CASE("Theorem 3 does not hold under mean: the merged key gains mass") {
  int changed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    changed += chain(KeyRule::mean, seed, false) > 1e-3f ? 1 : 0;
  }
  CHECK(changed > 50);
}

TEST_CASE("Theorem 3 holds for votes far apart and logits far apart") {
  for (KeyRule rule : {KeyRule::scale, KeyRule::along_query}) {
    for (float votes : {1.0f, 1e3f, 1e6f}) {
      for (float gap : {0.0f, 1.0f, 20.0f, 80.0f}) {
        INFO("votes " << votes << ", gap " << gap);
        ZipHead head(rule, 2, 1.0f);
        const std::vector<float> query{1, 0};
        const std::vector<std::vector<float>> keys{{1 + gap, 1}, {1, -1}, {0.5f, 2}};
        const std::vector<std::vector<float>> values{{1, 2}, {-3, 4}, {5, -6}};
        head.push(keys[0].data(), values[0].data(), 1);
        head.push(keys[1].data(), values[1].data(), votes);
        head.push(keys[2].data(), values[2].data(), 1);
        const auto output = head.attend(query.data());
        const float lse = head.lse();
        head.predict(query.data());
        head.merge(1, 0);
        CHECK(close_all(head.attend(query.data()), output, 1e-4, 1e-4));
        CHECK(close(head.lse(), lse, 1e-5, 1e-5));
        CHECK(head.head().weight(0) == votes + 1);
      }
    }
  }
}

TEST_CASE("Theorem 3 holds through a whole cache, with both selectors") {
  for (KeyRule rule : {KeyRule::scale, KeyRule::along_query}) {
    for (std::uint64_t seed = 1; seed <= 15; ++seed) {
      INFO("seed " << seed << ", rule " << static_cast<int>(rule));
      double gain = 0;
      const tersekv::KeepKVOptions options{.decay = kNoMemory, .key_rule = rule};
      CHECK(largest_change(tersekv::make_keepkv(options), seed, gain) < 2e-4);
      CHECK(largest_change(tersekv::make_keepkv_pair(options), seed, gain) < 2e-4);
    }
  }
}

TEST_CASE("Theorem 3 does not hold through a whole cache under mean") {
  double gain = 0;
  const tersekv::KeepKVOptions options{.decay = kNoMemory, .key_rule = KeyRule::mean};
  CHECK(largest_change(tersekv::make_keepkv(options), 1, gain) > 2e-3);
  CHECK(largest_change(tersekv::make_keepkv_pair(options), 1, gain) > 2e-3);
  CHECK(gain > 2e-3);
}

TEST_CASE("a mean logit near zero takes the plain mean of the keys under scale") {
  ZipHead head(KeyRule::scale, 2, 1.0f);
  const std::vector<float> query{0, 1}, e{2, 0}, c{6, 0}, value{1, 1};
  head.push(e.data(), value.data(), 1);
  head.push(c.data(), value.data(), 3);
  head.predict(query.data());
  head.merge(0, 1);
  CHECK(close_all(head.key(0), std::vector<float>{4, 0}, 1e-6, 1e-6));
}

TEST_CASE("scale divides by any mean logit but one a millionth of tau") {
  // Equal votes and log-scores of +-1 give shares of e : 1/e; a little more for both moves the mean
  // logit away from zero.
  const std::vector<float> query{0, 1}, e{2, 0}, c{6, 0}, value{1, 1};
  const double share = std::exp(1.0) / (std::exp(1.0) + std::exp(-1.0));
  const double mean = 2 * share + 6 * (1 - share);
  for (const double logit : {1e-4, -1e-4, 1e-3}) {
    ZipHead head(KeyRule::scale, 2, 1.0f);
    head.push(e.data(), value.data(), 1);
    head.push(c.data(), value.data(), 1);
    const double to_zero = (1 - share) - share;  // the mean logit at +-1
    const std::vector<float> scores{static_cast<float>(1 + to_zero + logit),
                                    static_cast<float>(-1 + to_zero + logit)};
    head.predict(query.data(), scores.data());
    const double l_e = scores[0], l_c = scores[1];
    const double tau = std::log((std::exp(l_e) + std::exp(l_c)) / 2);
    head.merge(0, 1);
    const double want = mean * tau / (share * l_e + (1 - share) * l_c);
    CAPTURE(logit, want);
    CHECK(close_all(head.key(0), std::vector<double>{want, 0}, 2e-2, 0));
  }
}

TEST_CASE("scale takes the plain mean up to a mean logit of a millionth") {
  // Log-scores of +-s and a little more for both: small enough for floats to tell such means apart.
  const std::vector<float> query{0, 1}, e{2, 0}, c{6, 0}, value{1, 1};
  const double s = 0.01, share = std::exp(s) / (std::exp(s) + std::exp(-s));
  for (const double logit : {0.4e-6, -0.4e-6, 3e-6, -3e-6}) {
    ZipHead head(KeyRule::scale, 2, 1.0f);
    head.push(e.data(), value.data(), 1);
    head.push(c.data(), value.data(), 1);
    const double more = logit - (2 * share - 1) * s;
    const std::vector<float> scores{static_cast<float>(s + more), static_cast<float>(-s + more)};
    head.predict(query.data(), scores.data());
    head.merge(0, 1);
    CAPTURE(logit, head.key(0)[0]);
    if (std::fabs(logit) < 1e-6) {
      CHECK(close_all(head.key(0), std::vector<float>{4, 0}, 1e-5, 0));
    } else {  // some 60 times as much, of either sign
      CHECK(std::fabs(head.key(0)[0]) > 20.0f);
    }
  }
}

TEST_CASE("a zero query leaves the mean key as it is under along_query") {
  ZipHead head(KeyRule::along_query, 2, 1.0f);
  const std::vector<float> query{0, 0}, e{2, 0}, c{6, 0}, value{1, 1}, scores{1, 4};
  head.push(e.data(), value.data(), 1);
  head.push(c.data(), value.data(), 3);
  head.predict(query.data(), scores.data());
  head.merge(0, 1);
  const double share = std::exp(1.0) / (std::exp(1.0) + 3 * std::exp(4.0));
  CHECK(close_all(head.key(0), std::vector<double>{share * 2 + (1 - share) * 6, 0}, 1e-5, 1e-6));
}

TEST_CASE("along_query moves no key for a divergence that is rounding") {
  Random random(9);
  const std::vector<float> query{0.5f, 1}, zero{0, 0}, value{1, 1};
  for (int trial = 0; trial < 200; ++trial) {
    ZipHead head(KeyRule::along_query, 2, 1.0f);
    head.push(zero.data(), value.data(), static_cast<float>(random.integer(1, 50)));
    head.push(zero.data(), value.data(), static_cast<float>(random.integer(1, 50)));
    const float both = random.uniform(-5, 5);
    const std::vector<float> scores{both, both};
    head.predict(query.data(), scores.data());
    head.merge(0, 1);
    CHECK(head.key(0) == zero);
  }
}
