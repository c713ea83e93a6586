// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "given_weights.hpp"
#include "support/compare.hpp"
#include "tersekv/kv_cache.hpp"
#include "tersekv/policies/full.hpp"

using tersekv::Index;

TEST_CASE("attention over many equal entries is exact enough for every page size") {
  // Equal terms round the same way at every addition, so long partial sums would show. (Ones would
  // not round at all.)
  const Index n = 30000, q_heads = 3;
  const float value = 0.7f;
  const std::vector<float> zeros(static_cast<std::size_t>(n)), values(zeros.size(), value);
  for (const Index page : {16, 64, 512, 4096}) {
    tersekv::KVCache<tersekv::Full> cache(
        {.num_q_heads = q_heads, .num_kv_heads = 1, .head_dim = 1, .page_size = page});
    double worst = 0;
    for (Index held = 0; held < n; held += 1000) {
      cache.append(0, tersekv::nhd_view(zeros.data(), 1000, 1, 1),
                   tersekv::nhd_view(values.data(), 1000, 1, 1));
      std::vector<float> out(static_cast<std::size_t>(q_heads));
      cache.attend(0, tersekv::nhd_view(zeros.data(), 1, q_heads, 1),
                   tersekv::nhd_view(out.data(), 1, q_heads, 1));
      for (const float x : out) {
        REQUIRE(support::is_finite(x));
        worst = std::max(worst, std::abs(static_cast<double>(x) / double{value} - 1));
      }
    }
    CAPTURE(page);
    CHECK(worst < 8e-6);
    CHECK(worst > 1e-8);  // some rounding there must be
  }
}

namespace {
template <class T, Index head_dim, Index page>
struct Stored {
  using Cache = tersekv::KVCache<tersekv::Full, T>;
  static constexpr Index dim = head_dim, page_size = page;
};
}  // namespace

TEMPLATE_TEST_CASE("equal entries get equal attention to the bit, wherever they lie", "",
                   (Stored<float, 5, 16>), (Stored<tersekv::BFloat16, 64, 32>),
                   (Stored<tersekv::Int8, 64, 64>)) {
  using tersekv::GroupReduce;
  const Index n = 323, dim = TestType::dim;  // sections, pages and vectors that are not full
  for (const GroupReduce reduce : {GroupReduce::sum, GroupReduce::mean, GroupReduce::max}) {
    for (const Index group : {1, 2, 3, 4, 5, 7, 11}) {
      CAPTURE(group, static_cast<int>(reduce));
      typename TestType::Cache cache({.num_q_heads = group,
                                      .num_kv_heads = 1,
                                      .head_dim = dim,
                                      .group_reduce = reduce,
                                      .page_size = TestType::page_size});
      const std::vector<float> keys(static_cast<std::size_t>(n * dim), 0.3f);
      cache.append(0, tersekv::nhd_view(keys.data(), n, 1, dim),
                   tersekv::nhd_view(keys.data(), n, 1, dim));
      std::vector<float> q(static_cast<std::size_t>(group * dim)), out(q.size());
      for (std::size_t j = 0; j < q.size(); ++j) q[j] = 0.01f * static_cast<float>(j);
      std::vector<float> attention(static_cast<std::size_t>(n));
      cache.attend(0, tersekv::nhd_view<const float>(q.data(), 1, group, dim),
                   tersekv::nhd_view(out.data(), 1, group, dim),
                   {.rows = {attention.data(), 1, n, n}});
      CHECK(std::abs(attention.front() * static_cast<float>(n) -
                     (reduce == GroupReduce::sum ? static_cast<float>(group) : 1.0f)) < 1e-4f);
      CHECK(std::count(attention.begin(), attention.end(), attention.front()) == n);
    }
  }
}

TEST_CASE("attention far below the highest is equal, whatever the logits") {
  // In a page of their own, relative to whose highest they differ by powers of two.
  const Index n = 2304, low = 64;
  using tersekv::GroupReduce;
  for (const GroupReduce reduce : {GroupReduce::sum, GroupReduce::mean, GroupReduce::max}) {
    for (const Index group : {1, 3, 6}) {
      CAPTURE(group, static_cast<int>(reduce));
      tersekv::KVCache<tersekv::Full> cache({.num_q_heads = group,
                                             .num_kv_heads = 1,
                                             .head_dim = 1,
                                             .scale = 1.0f,
                                             .group_reduce = reduce});
      std::vector<float> keys(static_cast<std::size_t>(n));
      for (Index i = 0; i < low; ++i) {
        keys[static_cast<std::size_t>(i)] = -200.0f - static_cast<float>(i % 7);
      }
      cache.append(0, tersekv::nhd_view(keys.data(), n, 1, 1),
                   tersekv::nhd_view(keys.data(), n, 1, 1));
      const std::vector<float> q(static_cast<std::size_t>(group), 1.0f);
      std::vector<float> out(q.size()), attention(keys.size());
      cache.attend(0, tersekv::nhd_view(q.data(), 1, group, 1),
                   tersekv::nhd_view(out.data(), 1, group, 1),
                   {.rows = {attention.data(), 1, n, n}});
      CHECK(std::count(attention.begin(), attention.begin() + low, attention.front()) == low);
      CHECK(attention.front() < 1e-36f);
      // What goes through it later, and attention itself, would be slow with smaller numbers.
      CHECK(attention.front() >= std::numeric_limits<float>::min());
      CHECK(attention.back() > 1e-4f);
    }
  }
}

TEST_CASE("equal entries get equal attention far below the highest, in whatever tile they lie") {
  // The highest entry is in the second section, and so is one of the two that are equal: of the
  // other's tile all exponentials are relative to a much lower power.
  const Index n = 512, highest = 256, there = 257;
  using tersekv::GroupReduce;
  const auto attention_to = [&](const std::vector<float>& queries, float key, float weight,
                                GroupReduce reduce) {
    const auto group = static_cast<Index>(queries.size());
    tersekv::KVCache<support::GivenWeights> cache({.num_q_heads = group,
                                                   .num_kv_heads = 1,
                                                   .head_dim = 1,
                                                   .scale = 1.0f,
                                                   .group_reduce = reduce});
    std::vector<float> keys(static_cast<std::size_t>(n), key), values(keys.size()),
        weights(keys.size(), 1.0f);
    keys[highest] = 0.0f;
    weights[0] = weights[there] = weight;
    cache.append(0, tersekv::nhd_view(keys.data(), n, 1, 1),
                 tersekv::nhd_view(values.data(), n, 1, 1), {weights.data(), 1});
    std::vector<float> out(queries.size()), attention(keys.size());
    cache.attend(0, tersekv::nhd_view(queries.data(), 1, group, 1),
                 tersekv::nhd_view(out.data(), 1, group, 1), {.rows = {attention.data(), 1, n, n}});
    return attention;
  };
  // Two rows' attention is added up: in either tile one row's may be lower than a float can say.
  // And what weights add to it is the same in both, from what is just above the lowest on.
  for (const std::vector<float>& queries : {std::vector{1.0f}, {1.0f, 3.0f}, {2.0f, 1.0f, 0.9f}}) {
    for (const GroupReduce reduce : {GroupReduce::sum, GroupReduce::mean, GroupReduce::max}) {
      for (float key = -40.0f; key > -210.0f; key -= 6.04f) {
        for (const float weight : {1.0f, 16.0f, 1e9f, 1e20f}) {
          CAPTURE(queries.size(), static_cast<int>(reduce), key, weight);
          const std::vector<float> attention = attention_to(queries, key, weight, reduce);
          CHECK(attention[0] == attention[there]);
          CHECK(attention[0] >= attention[1]);
          CHECK(attention[1] == attention[there + 1]);
          CHECK(attention[1] >= std::numeric_limits<float>::min());
          if (weight * std::exp(double{key}) < 1e-3) CHECK(attention[highest] > 0.99f);
        }
      }
    }
  }
}
