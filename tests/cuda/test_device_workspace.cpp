// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cuda/small_cache.hpp"
#include "refusal.hpp"
#include "tersekv/tersekv.hpp"

// What caches on a device share, and what they find in it: workspaces and pages of others.

using namespace tersekv;
using on_device::Array;
using on_device::kDim;
using on_device::kGroup;
using on_device::kHeads;
using on_device::small_config;
using on_device::SmallCache;
using on_device::Tokens;
using on_device::TokensOf;
using support::Random;

TEST_CASE("device: a workspace made for longer heads has no more rows than it has") {
  on_device::require_device();
  const tersekv::cuda::DeviceOptions short_prompts{.max_chunk = 40};
  tersekv::cuda::BasicPagePool<on_device::Runtime> pool(20), own_pool(4);
  tersekv::cuda::BasicWorkspace<on_device::Runtime> workspace, own_workspace;
  SmallCache<KeepKV> large(small_config(1, 400), {}, short_prompts, pool, workspace);
  SmallCache<KeepKV> shares(small_config(1, 20), {}, short_prompts, pool, workspace);
  SmallCache<KeepKV> alone(small_config(1, 20), {}, short_prompts, own_pool, own_workspace);
  Random random(1);
  for (const Index count : {40, 1, 7}) {
    const Tokens tokens(random, count, kHeads, kGroup, kDim);
    shares.extend(tokens.batch(0));
    const auto out = tokens.out();
    alone.extend(tokens.batch(0));
    const auto want = tokens.out();
    REQUIRE(out.size() == want.size());
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - want[i]) <= 1e-5f);
  }
  const auto a = shares.synchronize_to_host(), b = alone.synchronize_to_host();
  for (Index h = 0; h < kHeads; ++h) {
    const auto x = a.entries(0, h), y = b.entries(0, h);
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i].position == y[i].position);
  }
}

TEST_CASE("device: a workspace of caches of several head_dims has as many parts as fit its rows") {
  on_device::require_device();
  tersekv::cuda::BasicWorkspace<on_device::Runtime> workspace;
  workspace.reserve({.heads = 1, .entries = 64, .group = 1, .head_dim = 64, .parts = 100});
  workspace.reserve({.heads = 1, .entries = 64, .group = 1, .head_dim = 128, .parts = 60});
  CHECK(workspace.parts(128) == 60);  // 7680 numbers
  CHECK(workspace.parts(64) == 100);
  CHECK(workspace.parts(256) == 30);
}

TEST_CASE("device: policies that observe nothing give attention rows, too") {
  on_device::require_device();
  Random random(2);
  const Index length = 30;
  SmallCache<Full> cache(small_config(3, kUnlimited), {}, {.max_length = 64});
  const Tokens tokens(random, length, kHeads, kGroup, kDim);
  const auto batch = tokens.batch(2);
  cache.append<const float>(2, batch.k, batch.v);
  const Index stride = 64;
  const Array<float> rows(2 * kHeads * stride, 0.0f);
  const AttentionRows<float> view{rows.data(), 2, kHeads * stride, stride};
  cache.attend<float>(2, batch.q.rows(length - 2, 2), batch.out.rows(length - 2, 2),
                      {.rows = view});
  cache.synchronize();
  const auto all = rows.host();
  for (Index r = 0; r < 2; ++r) {
    for (Index h = 0; h < kHeads; ++h) {
      const float* row = all.data() + (r * kHeads + h) * stride;
      const float sum = std::accumulate(row, row + length - 1 + r, 0.0f);
      CHECK(std::abs(sum - kGroup) < 1e-4f);  // of the group's query heads, 1 each
      CHECK(row[length - 1 + r] == 0.0f);     // which is not seen
    }
  }
}

TEST_CASE("device: what another sequence left in a page touches nobody") {
  on_device::require_device();
  const auto check = []<class Codec>(Codec infinity, Index group) {
    tersekv::cuda::BasicPagePool<on_device::Runtime> pool(2);
    tersekv::cuda::BasicWorkspace<on_device::Runtime> workspace;
    CacheConfig two = small_config(2, kUnlimited);
    two.num_q_heads = kHeads * group;
    SmallCache<Full, Codec> cache(two, {}, {.max_length = 64}, pool, workspace);
    const std::vector<Codec> rows(60 * kHeads * kDim, infinity);
    const Array<Codec> there(rows);
    const Codec* data = there.data();
    cache.template append<const Codec>(0, nhd_view(data, 60, kHeads, kDim),
                                       nhd_view(data, 60, kHeads, kDim));
    cache.clear(0);
    Random random(3);
    const TokensOf<Codec> tokens(random, 10, kHeads, group, kDim);
    cache.extend(tokens.batch(1));
    for (const float x : tokens.out()) REQUIRE(std::isfinite(x));
  };
  check(std::numeric_limits<float>::infinity(), 2);
  check(Half{0x7c00}, 2);
  check(Half{0x7c00}, 4);
  check(BFloat16{0x7fff}, 4);  // not a number
}

TEST_CASE("device: more heads than a launch may have are refused") {
  on_device::require_device();
  CHECK(support::refused([] { SmallCache<H2O> cache(small_config(40000, 8)); },
                         {"num_sequences * num_kv_heads, on a device: expected at most 65535"}));
}
