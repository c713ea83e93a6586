// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

// A scorer's lower bound of its scores is one, rounding included, and near enough to be of use.

using support::Random;
using tersekv::Index;
using tersekv::KeyNorms;
namespace simd = tersekv::simd;

namespace {

constexpr Index kDim = 8, kKv = 2;

using Cache = tersekv::KVCache<tersekv::KeepKV>;

/// Tokens whose queries the cache sees, or of which it sees nothing but that they are there.
void add(Cache& cache, Random& random, Index count, float spread, bool seen) {
  const Index q_heads = cache.config().num_q_heads;
  const auto q = random.normals(count * q_heads * kDim, spread);
  const auto k = random.normals(count * kKv * kDim, spread);
  const auto v = random.normals(count * kKv * kDim);
  std::vector<float> out(q.size());
  const auto view = [&](auto& x, Index heads) {
    return tersekv::nhd_view(x.data(), count, heads, kDim);
  };
  if (seen) {
    cache.extend(view(q, q_heads), view(k, kKv), view(v, kKv), view(out, q_heads));
  } else {
    cache.append(0, view(k, kKv), view(v, kKv));
    cache.compress(0);
  }
}

/// A bound as those write it who know slots alone.
struct OwnBound : tersekv::PredictedMass {
  template <class Head>
  float least_score(const Head& head, Index slot) const {
    return tersekv::PredictedMass::least_score(head, slot) - 1;
  }
};
using OwnPolicy = tersekv::Policy<OwnBound, tersekv::LowestScore, tersekv::ZipMerge>;

/// Names the oldest, and says of slots alone who may carry it.
struct OwnSelector : tersekv::SelectorBase {
  template <class Team, class Head, class Scorer, class Merger>
  void compress(Team& team, const Head& head, const Scorer& scorer, const Merger& merger, Index,
                Index merger_column) const {
    while (head.length() > head.budget()) {
      const auto eligible = [](Index) { return true; };
      const Index oldest = team.argmin(head, head.length(), eligible, [&](Index i) {
        return static_cast<float>(head.position(i));
      });
      std::int32_t* victims = head.scratch().slots;
      team.once([&] { victims[0] = static_cast<std::int32_t>(oldest); });
      const Index leaving = merger.retire(team, head, scorer, victims, 1, eligible, merger_column);
      tersekv::remove_entries(team, head, victims, leaving);
    }
  }
};

/// By how much a bound of a logarithm may be lower.
constexpr float kLogGap = 0.06f;

/// And by how much for rounding.
template <class Head>
float rounding_of(const Head& head, float score) {
  const auto group = static_cast<float>(head.shape().group_size);
  return (3e-6f + 7e-8f * group) * (100 + std::abs(score));
}

void check_bounds(const Cache& cache) {
  const auto& scorer = cache.policy().scorer();
  for (Index h = 0; h < kKv; ++h) {
    const auto head = cache.head(0, h);
    for (Index i = 0; i < head.length(); ++i) {
      const float score = scorer.score(head, i), least = scorer.least_score(head, i);
      const float rough = scorer.rough_score(head, i);
      CHECK(least < score);
      CHECK(rough < score);
      const auto group = static_cast<float>(head.shape().group_size);
      const float rounding = rounding_of(head, score);
      CHECK(score <= least + rounding);
      // Of the heads' sum the roughest is its highest term, and averages that lack something are
      // higher than they look by no more than after one query.
      const float weight =
          std::exp2(std::round(std::log2(head.weight(i)))) == head.weight(i) ? 0.0f : kLogGap;
      const float lacked = -std::log1p(-scorer.decay);
      CHECK(score <= rough + std::log(group) + lacked + weight + rounding);
    }
  }
}

/// The same bounds, worked out for several entries at a time.
void check_bounds_in_vectors(const Cache& cache) {
  const auto& scorer = cache.policy().scorer();
  for (Index h = 0; h < kKv; ++h) {
    const auto head = cache.head(0, h);
    for (Index first = 0; first + simd::kLanes <= head.length(); first += simd::kLanes) {
      auto slot = head.page_slot(head.page_index(first));
      slot.in_page = head.in_page(first);
      const tersekv::SlotVector<true> slots{slot};
      const simd::Floats least = scorer.least_score(head, slots);
      const simd::Floats rough = scorer.rough_score(head, slots);
      for (Index lane = 0; lane < simd::kLanes; ++lane) {
        const float score = scorer.score(head, first + lane);
        CHECK(least[lane] < score);
        CHECK(rough[lane] < score);
        CHECK(score <= least[lane] + rounding_of(head, score));
      }
    }
  }
}

}  // namespace

TEST_CASE("KeepKV's lower bounds of a mass are some, and off by no more than what they leave out") {
  Random random(3);
  INFO(random);
  for (Index group : {1, 3, 8}) {
    for (float decay : {0.9f, 0.99f}) {
      for (float spread : {0.1f, 1.0f, 30.0f}) {
        Cache cache(
            {.num_q_heads = kKv * group, .num_kv_heads = kKv, .head_dim = kDim, .budget = 40},
            tersekv::make_keepkv({.decay = decay}));
        for (Index count : {60, 1, 1, 7, 1, 0, 1, 1}) {
          INFO("group " << group << ", decay " << decay << ", spread " << spread << ", " << count
                        << " tokens");
          add(cache, random, count > 0 ? count : 2, spread, count > 0);
          check_bounds(cache);
          check_bounds_in_vectors(cache);
        }
      }
    }
  }
}

TEST_CASE("KeepKV's bounds hold where many heads agree, and round the same way in every sum") {
  constexpr Index group = 256;
  Cache cache({.num_q_heads = kKv * group, .num_kv_heads = kKv, .head_dim = kDim, .budget = 300},
              tersekv::KeepKV());
  Random random(45);
  INFO(random);
  const auto k = random.normals(290 * kKv * kDim, 3.0f), one = random.normals(kDim, 8.0f);
  std::vector<float> q, out(290 * kKv * group * kDim);
  while (q.size() < out.size()) q.insert(q.end(), one.begin(), one.end());
  const auto view = [](auto& x, Index heads) {
    return tersekv::nhd_view(x.data(), 290, heads, kDim);
  };
  cache.extend(view(q, kKv * group), view(k, kKv), view(k, kKv), view(out, kKv * group));
  check_bounds(cache);
  check_bounds_in_vectors(cache);
}

TEST_CASE("KeepKV's bounds are numbers where the sum of a group's logarithms would be none") {
  const Index q_heads = 3, dim = 65536, budget = 15;  // logits up to 6.6e37
  Cache cache({.num_q_heads = q_heads,
               .num_kv_heads = 1,
               .head_dim = dim,
               .budget = budget,
               .scale = 1000.0f,
               .page_size = 16},
              tersekv::make_keepkv({.recent = 0, .sinks = 0}));
  std::vector<float> q(q_heads * dim), k(dim, 1e15f), v(dim, 1.0f), out(q.size());
  const auto view = [&](auto& x, Index heads) {
    return tersekv::nhd_view(x.data(), 1, heads, dim);
  };
  for (int token = 0; token < 2 * budget; ++token) {
    std::fill(q.begin(), q.end(), token % 2 == 0 ? 1e15f : -1e15f);
    cache.extend(view(q, q_heads), view(k, 1), view(v, 1), view(out, q_heads));
    REQUIRE(cache.length(0, 0) == std::min<Index>(token + 1, budget));
    const auto head = cache.head(0, 0);
    for (Index i = 0; i < head.length(); ++i) {
      const float least = cache.policy().scorer().least_score(head, i);
      REQUIRE(std::isfinite(least));
      REQUIRE(least <= cache.policy().scorer().score(head, i));
    }
  }
}

TEST_CASE(
    "Similarities are no higher than their bounds, of keys as long and short as keys can be") {
  Random random(41);
  INFO(random);
  const auto size = [&](float most) { return std::pow(10.0f, random.uniform(-most, most)); };
  float largest_gap = 0;
  for (int trial = 0; trial < 100'000; ++trial) {
    const float own = std::pow(size(trial % 3 == 0 ? 15.0f : 3.0f), 2.0f);
    const float other = std::pow(size(trial % 3 == 0 ? 15.0f : 3.0f), 2.0f);
    const float cosine = trial % 7 == 0 ? 1.0f : random.uniform(-1, 1) * size(trial % 2 * 6.0f);
    if (std::fabs(cosine) > 1) continue;
    const float product = cosine * std::sqrt(own) * std::sqrt(other);
    const float inverse = own > 1e-30f ? 1.0f / own : 0.0f;
    const float exact = KeyNorms::similarity(product, own, other);
    const float most = KeyNorms::similarity_at_most(product, inverse, other);
    CAPTURE(own, other, product);
    REQUIRE(exact <= most);
    const auto in_vector =
        KeyNorms::similarity_at_most(simd::broadcast(product), inverse, simd::broadcast(other));
    REQUIRE(exact <= in_vector[0]);
    if (own > 1e-30f) largest_gap = std::max(largest_gap, std::min(most, 1.0f) - exact);
  }
  CHECK(largest_gap > 1e-7f);
  CHECK(largest_gap < 1e-5f);
}

TEST_CASE("A lower bound may be given slot by slot, and looser ones change nothing") {
  Random random(43);
  INFO(random);
  const tersekv::CacheConfig config{
      .num_q_heads = 2 * kKv, .num_kv_heads = kKv, .head_dim = kDim, .budget = 40};
  const tersekv::KeepKV policy;
  tersekv::KVCache<OwnPolicy> own(config, OwnPolicy(OwnBound{policy.scorer()}, policy.selector()));
  Cache usual(config, policy);
  for (int token = 0; token < 120; ++token) {
    const auto q = random.normals(2 * kKv * kDim), k = random.normals(kKv * kDim),
               v = random.normals(kKv * kDim);
    std::vector<float> out(q.size());
    const auto view = [](auto& x, Index heads) {
      return tersekv::nhd_view(x.data(), 1, heads, kDim);
    };
    usual.extend(view(q, 2 * kKv), view(k, kKv), view(v, kKv), view(out, 2 * kKv));
    own.extend(view(q, 2 * kKv), view(k, kKv), view(v, kKv), view(out, 2 * kKv));
  }
  for (Index h = 0; h < kKv; ++h) {
    const auto a = own.entries(0, h), b = usual.entries(0, h);
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].position == b[i].position);
  }
}

TEST_CASE("Who may carry a victim may be said slot by slot") {
  using Own = tersekv::Policy<tersekv::PredictedMass, OwnSelector, tersekv::ZipMerge>;
  Random random(44);
  INFO(random);
  tersekv::KVCache<Own> cache(
      {.num_q_heads = kKv, .num_kv_heads = kKv, .head_dim = kDim, .budget = 20});
  const auto q = random.normals(33 * kKv * kDim), k = random.normals(33 * kKv * kDim);
  std::vector<float> out(q.size());
  const auto view = [](auto& x) { return tersekv::nhd_view(x.data(), 33, kKv, kDim); };
  cache.extend(view(q), view(k), view(k), view(out));
  CHECK(cache.length(0, 0) == 20);
  CHECK(cache.counts(0, 0).merges == 13);
}
