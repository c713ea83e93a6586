// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "given_weights.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

// Facts about attention over entries that hold whatever the policy.

using support::close;
using support::close_all;
using support::GivenWeights;
using support::Random;
using tersekv::Index;

namespace {

constexpr Index kDim = 12, kGroup = 2;

struct Entries {
  std::vector<float> keys, values, weights;

  Index size() const { return static_cast<Index>(weights.size()); }
  void add(const std::vector<float>& key, const std::vector<float>& value, float weight) {
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
    weights.push_back(weight);
  }
};

Entries random_entries(Random& random, Index n) {
  Entries entries;
  for (Index i = 0; i < n; ++i) {
    entries.add(random.normals(kDim), random.normals(kDim), std::pow(10.0f, random.uniform(-2, 3)));
  }
  return entries;
}

tersekv::KVCache<GivenWeights> cache_of(const Entries& entries, float alpha, Index leaving = -1) {
  GivenWeights policy;
  policy.exponent = alpha;
  policy.leaving = leaving;
  tersekv::KVCache<GivenWeights> cache(
      {.num_q_heads = kGroup, .num_kv_heads = 1, .head_dim = kDim, .page_size = 16}, policy);
  cache.append(0, tersekv::nhd_view(entries.keys.data(), entries.size(), 1, kDim),
               tersekv::nhd_view(entries.values.data(), entries.size(), 1, kDim),
               {entries.weights.data(), 1});
  return cache;
}

struct State {
  std::vector<float> out, lse;
};

template <class Cache>
State attend(Cache& cache, const std::vector<float>& queries) {
  State state{std::vector<float>(kGroup * kDim), std::vector<float>(kGroup)};
  cache.attend(0, tersekv::nhd_view(queries.data(), 1, kGroup, kDim),
               tersekv::nhd_view(state.out.data(), 1, kGroup, kDim), {.lse = state.lse.data()});
  return state;
}

State merged(State a, const State& b) {
  for (std::size_t g = 0; g < kGroup; ++g) {
    tersekv::merge_states(a.out.data() + g * kDim, a.lse[g], b.out.data() + g * kDim, b.lse[g],
                          kDim);
  }
  return a;
}

void check_same(const State& got, const State& want) {
  CHECK(close_all(got.out, want.out, 1e-5, 3e-6));
  CHECK(close_all(got.lse, want.lse, 1e-6, 1e-6));
}

/// Splits what a compressed cache holds in two, and the halves' attention must merge to the
/// cache's. `more`: exact tokens in a third cache, merged in as well.
template <class PolicyType>
void check_split(const PolicyType& policy, float alpha, Random& random) {
  const Index tokens = 60, budget = 24;
  tersekv::KVCache<PolicyType> cache(
      {.num_q_heads = kGroup, .num_kv_heads = 1, .head_dim = kDim, .budget = budget}, policy);
  const auto q = random.normals(tokens * kGroup * kDim), k = random.normals(tokens * kDim),
             v = random.normals(tokens * kDim);
  std::vector<float> out(q.size());
  cache.extend(tersekv::nhd_view(q.data(), tokens, kGroup, kDim),
               tersekv::nhd_view(k.data(), tokens, 1, kDim),
               tersekv::nhd_view(v.data(), tokens, 1, kDim),
               tersekv::nhd_view(out.data(), tokens, kGroup, kDim), {.compress_every = 1});
  REQUIRE(cache.length(0, 0) == budget);
  Entries halves[2], all;
  float heaviest = 0;
  for (const tersekv::Entry& entry : cache.entries(0, 0)) {
    halves[random.integer(0, 1)].add(entry.key, entry.value, entry.weight);
    all.add(entry.key, entry.value, entry.weight);
    heaviest = std::max(heaviest, entry.weight);
  }
  CHECK(heaviest > 1.0f);
  REQUIRE(std::min(halves[0].size(), halves[1].size()) > 0);
  const auto queries = random.normals(kGroup * kDim, 2);
  auto a = cache_of(halves[0], alpha), b = cache_of(halves[1], alpha);
  const State both = merged(attend(a, queries), attend(b, queries));
  check_same(both, attend(cache, queries));

  const Entries exact = random_entries(random, 20);
  for (Index i = 0; i < exact.size(); ++i) {
    const auto at = [&](const std::vector<float>& rows) {
      return std::vector<float>(rows.begin() + i * kDim, rows.begin() + (i + 1) * kDim);
    };
    all.add(at(exact.keys), at(exact.values), exact.weights[static_cast<std::size_t>(i)]);
  }
  auto third = cache_of(exact, alpha), whole = cache_of(all, alpha);
  check_same(merged(both, attend(third, queries)), attend(whole, queries));
}

}  // namespace

TEST_CASE("an entry that leaves changes the output by the eviction identity") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO(random);
    const Index n = random.integer(2, 70), leaving = random.integer(0, n - 1);
    const float alpha = random.uniform(0, 1);
    auto cache = cache_of(random_entries(random, n), alpha, leaving);
    const auto queries = random.normals(kGroup * kDim);
    const auto entries = support::reference_entries(cache, 0);
    const State before = attend(cache, queries);
    cache.compress(0);
    REQUIRE(cache.length(0, 0) == n - 1);
    const State after = attend(cache, queries);
    for (Index g = 0; g < kGroup; ++g) {
      const reference::Vector query(queries.begin() + g * kDim, queries.begin() + (g + 1) * kDim);
      const auto exact = reference::attend(query, entries, entries.size(), alpha,
                                           1 / std::sqrt(static_cast<double>(kDim)));
      const double share = exact.shares[static_cast<std::size_t>(leaving)];
      if (share > 0.9) continue;  // 1 - share is then mostly rounding
      const reference::Vector whole(before.out.begin() + g * kDim,
                                    before.out.begin() + (g + 1) * kDim);
      const auto want =
          reference::output_without(whole, share, entries[static_cast<std::size_t>(leaving)].value);
      CHECK(close_all(
          std::vector<float>(after.out.begin() + g * kDim, after.out.begin() + (g + 1) * kDim),
          want, 1e-5, 1e-5));
    }
  }
}

TEST_CASE("a convex merge of two different keys loses attention mass without compensation") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO(random);
    const float share = random.chance(0.3) ? 0.5f : random.uniform(0, 1);
    const auto e = random.normals(kDim), c = random.normals(kDim), value = random.normals(kDim);
    std::vector<float> key;
    for (std::size_t j = 0; j < e.size(); ++j) key.push_back(share * e[j] + (1 - share) * c[j]);
    Entries before, after;
    before.add(e, value, 1);
    before.add(c, value, 1);
    after.add(key, value, 2);
    auto two = cache_of(before, 1), plain = cache_of(after, 0), compensated = cache_of(after, 1);
    const auto queries = random.normals(kGroup * kDim);
    const State full = attend(two, queries), sagging = attend(plain, queries),
                helped = attend(compensated, queries);
    for (std::size_t g = 0; g < kGroup; ++g) {
      CHECK(sagging.lse[g] < full.lse[g]);
      CHECK(close(helped.lse[g] - sagging.lse[g], std::log(2.0), 0, 2e-6));
      // Of the mean key not even the compensation restores all, but it never adds.
      if (share == 0.5f) CHECK(helped.lse[g] <= full.lse[g] + 2e-6f);
    }
  }
}

TEST_CASE("partial states over disjoint sets merge to the whole") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO(random);
    const Index n = random.integer(2, 90);
    const float alpha = random.uniform(0, 1);
    const Entries all = random_entries(random, n);
    const Index cut = random.integer(1, n - 1);
    Entries parts[2];
    for (Index i = 0; i < n; ++i) {
      Entries& part = parts[i < cut ? 0 : 1];
      part.add({all.keys.begin() + i * kDim, all.keys.begin() + (i + 1) * kDim},
               {all.values.begin() + i * kDim, all.values.begin() + (i + 1) * kDim},
               all.weights[static_cast<std::size_t>(i)]);
    }
    // From ordinary queries to those where one part outweighs the other by all that float holds.
    const auto queries = random.normals(kGroup * kDim, random.chance(0.3) ? 60 : 2);
    auto whole = cache_of(all, alpha), a = cache_of(parts[0], alpha), b = cache_of(parts[1], alpha);
    const State want = attend(whole, queries), x = attend(a, queries), y = attend(b, queries);
    check_same(merged(x, y), want);
    check_same(merged(y, x), want);
  }
}

TEST_CASE("merging with a part of hardly any mass changes nothing") {
  std::vector<float> out{1.0f, -2.0f};
  float lse = 50.0f;
  const std::vector<float> other{1e6f, 1e6f};
  tersekv::merge_states(out.data(), lse, other.data(), -250.0f, 2);
  CHECK(out == std::vector<float>{1.0f, -2.0f});
  CHECK(lse == 50.0f);
  tersekv::merge_states(out.data(), lse, other.data(), 400.0f, 2);
  CHECK(out == other);
  CHECK(lse == 400.0f);
}

TEST_CASE("a compressed cache split in two merges to the whole, and mixes with exact parts") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    INFO(random);
    check_split(tersekv::make_zsmerge({.residual = 3}), 1.0f, random);
    check_split(tersekv::make_zsmerge({.alpha = 0.5f}), 0.5f, random);
    check_split(tersekv::make_keepkv(), 1.0f, random);
    check_split(tersekv::make_keepkv_pair(), 1.0f, random);
  }
}
