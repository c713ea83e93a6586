// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <type_traits>
#include <vector>

#include "given_weights.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

using support::GivenWeights;
using support::Random;
using tersekv::AttendOutputs;
using tersekv::Index;

namespace {

/// Output and lse of the last token, where it and the `others` before it are asked for together.
template <class T>
std::vector<float> last_row(Index dim, Index length, Index others, bool weighted) {
  const Index heads = 2, tokens = others + 1;
  tersekv::KVCache<GivenWeights, T> cache(
      {.num_q_heads = heads, .num_kv_heads = heads, .head_dim = dim});
  Random random(11);
  const std::vector<float> k = random.normals(length * heads * dim),
                           v = random.normals(length * heads * dim),
                           q = random.normals(length * heads * dim, 3),
                           drawn = random.uniforms(length * heads, 0.5f, 4.0f);
  std::vector<float> weights = drawn;
  if (!weighted) weights.assign(weights.size(), 1.0f);
  cache.append(0, tersekv::nhd_view(k.data(), length, heads, dim),
               tersekv::nhd_view(v.data(), length, heads, dim),
               {.data = weights.data(), .token_stride = heads});
  std::vector<float> out(static_cast<std::size_t>(tokens * heads * dim)),
      lse(static_cast<std::size_t>(tokens * heads));
  AttendOutputs outputs;
  outputs.lse = lse.data();
  cache.template attend<float>(
      0, tersekv::nhd_view(q.data(), length, heads, dim).rows(length - tokens, tokens),
      tersekv::nhd_view(out.data(), tokens, heads, dim), outputs);
  std::vector<float> last(out.end() - heads * dim, out.end());
  last.insert(last.end(), lse.end() - heads, lse.end());
  return last;
}

/// Output, lse and attention per entry of one token of `group` query heads, the same keys and
/// values for all: of one KV head, or of one for each.
template <class T>
std::vector<float> of_group(Index group, bool one_head, Index dim, Index length) {
  const Index heads = one_head ? 1 : group;
  tersekv::KVCache<GivenWeights, T> cache({.num_q_heads = group,
                                           .num_kv_heads = heads,
                                           .head_dim = dim,
                                           .group_reduce = tersekv::GroupReduce::max});
  Random random(12);
  std::vector<float> k(static_cast<std::size_t>(length * heads * dim)), v = k,
                                                                        weights(k.size() / dim);
  const std::vector<float> keys = random.normals(length * dim),
                           values = random.normals(length * dim),
                           q = random.normals(group * dim, 3),
                           drawn = random.uniforms(length, 0.5f, 4.0f);
  for (Index i = 0; i < length; ++i) {
    for (Index h = 0; h < heads; ++h) {
      std::copy_n(keys.begin() + i * dim, dim, k.begin() + (i * heads + h) * dim);
      std::copy_n(values.begin() + i * dim, dim, v.begin() + (i * heads + h) * dim);
      weights[static_cast<std::size_t>(i * heads + h)] = drawn[static_cast<std::size_t>(i)];
    }
  }
  cache.append(0, tersekv::nhd_view(k.data(), length, heads, dim),
               tersekv::nhd_view(v.data(), length, heads, dim),
               {.data = weights.data(), .token_stride = heads});
  std::vector<float> all(static_cast<std::size_t>(group * (dim + 1))),
      rows(static_cast<std::size_t>(heads * length));
  AttendOutputs outputs;
  outputs.lse = all.data() + group * dim;
  outputs.rows = {rows.data(), 1, heads * length, length};
  cache.template attend<float>(0, tersekv::nhd_view(q.data(), 1, group, dim),
                               tersekv::nhd_view(all.data(), 1, group, dim), outputs);
  for (Index i = 0; one_head && i < length; ++i) all.push_back(rows[static_cast<std::size_t>(i)]);
  for (Index i = 0; !one_head && i < length; ++i) {  // the group's highest
    float highest = 0;
    for (Index h = 0; h < heads; ++h) {
      highest = std::max(highest, rows[static_cast<std::size_t>(h * length + i)]);
    }
    all.push_back(highest);
  }
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("a query head's attention is the same bits alone and in a group", "", float,
                   tersekv::BFloat16, tersekv::Half, tersekv::Int8) {
  using Tiled = tersekv::detail::TiledAttention<TestType, TestType>;
  for (const Index group : {3, 5, 8, 17}) {
    for (const Index dim : {64, 128}) {
      for (const Index length : {20, 150, 2090}) {
        INFO("group " << group << ", head_dim " << dim << ", length " << length);
        const auto together = of_group<TestType>(group, true, dim, length);
        const auto alone = of_group<TestType>(group, false, dim, length);
        // Tiles round shares of values of BFloat16, and work on no rows alone.
        if (std::is_same_v<TestType, tersekv::BFloat16> && Tiled::pays(group, dim, 64)) {
          support::ErrorStatistics errors;
          for (std::size_t i = 0; i < alone.size(); ++i) errors.add(together[i], alone[i], 1.0);
          CHECK(support::within(errors, {5e-8, 9e-6}, {2e-6, 6e-5}));
        } else {
          CHECK(together == alone);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("a row's attention over entries in memory is the same bits among others", "",
                   float, tersekv::BFloat16, tersekv::Half, tersekv::Int8) {
  for (const Index dim : {64, 96, 128, 192}) {
    for (const Index length : {2048, 2090}) {  // alone, in another order
      INFO("head_dim " << dim << ", length " << length);
      CHECK(last_row<TestType>(dim, length, 3, true) == last_row<TestType>(dim, length, 0, true));
    }
  }
}

TEMPLATE_TEST_CASE("a row's attention is the same bits alone and among others", "", float,
                   tersekv::BFloat16, tersekv::Half, tersekv::Int8) {
  for (const Index dim : {20, 64, 80, 128}) {  // scales that are powers of two, and others
    for (const Index length : {40, 64, 150}) {
      for (const bool weighted : {false, true}) {
        INFO("head_dim " << dim << ", length " << length << (weighted ? ", weighted" : ""));
        const std::vector<float> alone = last_row<TestType>(dim, length, 0, weighted);
        // Of many rows tile registers take those of 16 bits, and round otherwise.
        const bool tiled = tersekv::simd::Tiles::granted() && sizeof(TestType) == 2;
        const auto of_many = tiled ? last_row<TestType>(dim, length, 17, weighted) : alone;
        CHECK(support::close_all(of_many, alone, 1e-4, 1e-4));
        for (const Index others : {1, 2, 3, 15, 16, 30, 39}) {
          INFO(others << " others");
          const auto row = last_row<TestType>(dim, length, others, weighted);
          CHECK(row == (others < 16 ? alone : of_many));
        }
      }
    }
  }
}
