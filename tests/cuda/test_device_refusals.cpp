// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda/small_cache.hpp"
#include "refusal.hpp"
#include "tersekv/tersekv.hpp"

// What the cache on a device refuses, and that it is then as before.

using namespace tersekv;
using on_device::small_config;
using on_device::small_tokens;
using on_device::SmallCache;
using on_device::Tokens;
using support::Random;

TEST_CASE("device: bad arguments are refused before anything is launched", "[small]") {
  on_device::require_device();
  Random random(8);
  using Cache = SmallCache<H2O>;
  const auto refused = [](auto&& call, const char* message) {
    CHECK(support::refused(call, {message}));
  };
  refused([] { Cache({.num_q_heads = 2, .num_kv_heads = 1, .head_dim = 24, .budget = 8}); },
          "head_dim, on a device: expected 16, got 24");
  refused([] { Cache({.num_q_heads = 17, .num_kv_heads = 1, .head_dim = 16, .budget = 8}); },
          "expected 1 to 16, got 17");
  refused(
      [] {
        Cache({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16, .budget = 8, .page_size = 32});
      },
      "page_size, on a device: expected at least 64, got 32");
  refused([] { SmallCache<Full>({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16}); },
          "max_length: expected a number");

  Cache cache(small_config(2, 20), {}, {.max_chunk = 40});
  const Tokens t = small_tokens(random, 4);
  cache.extend(t.batch(0));
  auto b = t.batch(0);
  const auto with = [&](auto change) {
    auto changed = b;
    change(changed);
    return changed;
  };
  refused([&] { cache.extend(t.batch(2)); }, "sequence: expected 0 to 1, got 2");
  refused([&] { cache.extend(t.batch({1, 2})); }, "sequences: expected");
  refused([&] { cache.extend(t.rows(0, 3).batch({0, 2})); }, "as many for each sequence, got 3");
  refused([&] { cache.extend(with([](auto& x) { x.k.heads = 3; })); }, "k: expected [4, 2, 16]");
  refused([&] { cache.extend(with([](auto& x) { x.v.data = nullptr; })); }, "v: expected");
  refused([&] { cache.extend(with([](auto& x) { x.out.head_stride = 0; })); }, "out: strides");
  refused([&] { cache.extend(b, {.compress_every = -2}); }, "compress_every: expected");
  refused([&] { cache.attend<float>(0, t.rows(0, 2).batch(0).q, TokenView<float>{}); },
          "tokens of q: expected 0 to 1");
  CHECK(support::refused_with<std::length_error>(
      [&] { cache.extend(small_tokens(random, 70).batch(0), {.compress_every = kNever}); },
      {"entries of a head: expected at most 64"}));
  SmallCache<Full> full(small_config(1, kUnlimited), {}, {.max_length = 64});
  CHECK(support::refused_with<std::length_error>(
      [&] { full.extend(small_tokens(random, 100).batch(0), {.compress_every = 1}); },
      {"expected at most 64", "got up to 100"}));
  cache.synchronize();
  CHECK(cache.tokens_seen(0) == 4);
  CHECK(cache.length(0, 0) == 4);
}

TEST_CASE("device: chunks that overlap, and content of other parameters, are refused", "[small]") {
  on_device::require_device();
  Random random(9);
  SmallCache<MorphKV> cache(small_config(2, 40), make_morphkv({.recent = 8}), {.max_chunk = 40});
  const Tokens one = small_tokens(random, 4), two = small_tokens(random, 4);
  const auto chunk_of = [](const auto& b, Index sequence) {
    return Chunk<float>{.sequence = sequence, .q = b.q, .k = b.k, .v = b.v, .out = b.out};
  };
  std::vector<Chunk<float>> chunks = {chunk_of(one.batch(0), 0), chunk_of(two.batch(0), 1)};
  const auto extend = [&] { cache.extend(std::span<const Chunk<float>>(chunks)); };
  extend();
  chunks[0].out = chunks[1].out;
  CHECK(support::refused(extend, {"an out and lse apart from the views of all others"}));
  cache.synchronize();
  CHECK(cache.tokens_seen(0) == 4);
  CHECK(cache.tokens_seen(1) == 4);

  SmallCache<MorphKV>::HostCache other(small_config(2, 40), make_morphkv({.recent = 16}));
  CHECK(support::refused([&] { cache.synchronize_from_host(other); }, {"policy"}));
  CHECK(cache.tokens_seen(0) == 4);
}

TEST_CASE("device: content of another configuration, and of a cache moved from, is refused",
          "[small]") {
  on_device::require_device();
  Random random(11);
  using Cache = SmallCache<H2O>;
  Cache cache(small_config(1, 20), {}, {.max_chunk = 40});
  cache.extend(small_tokens(random, 4).batch(0));
  const auto refused = [&](auto&& change, const char* what) {
    CacheConfig config = small_config(1, 20);
    change(config);
    Cache::HostCache other(config);
    CHECK(support::refused([&] { cache.synchronize_from_host(other); }, {what}));
  };
  refused([](CacheConfig& c) { c.num_sequences = 2; }, "num_sequences: expected 1, got 2");
  refused([](CacheConfig& c) { c.budget = 60; }, "budget: expected 20, got 60");
  refused([](CacheConfig& c) { c.layer = 1; }, "layer: expected 0, got 1");
  refused([](CacheConfig& c) { c.scale = 0.5f; }, "scale: expected");
  refused([](CacheConfig& c) { c.group_reduce = GroupReduce::max; }, "group_reduce: expected");
  Cache::HostCache one(small_config(1, 20));
  const Cache::HostCache moved(std::move(one));
  CHECK(support::refused([&] { cache.synchronize_from_host(one); },
                         {"a cache that was not moved from, got 0"}));
  CHECK(cache.tokens_seen(0) == 4);
}

TEST_CASE("device: rows of attention that lie in each other are refused", "[small]") {
  on_device::require_device();
  Random random(12);
  SmallCache<H2O> cache(small_config(1, 20), {}, {.max_chunk = 40});
  const Tokens one = small_tokens(random, 1);
  const auto b = one.batch(0);
  cache.append<const float>(0, b.k, b.v);
  const on_device::Array<float> rows(2 * 64, 0.5f);
  const auto observe = [&](Index head_stride) {
    cache.observe(0, AttentionRows<const float>{rows.data(), 1, 128, head_stride});
  };
  CHECK(support::refused([&] { observe(0); }, {"rows: expected strides that keep"}));
  CHECK_NOTHROW(observe(64));
}

TEST_CASE("device: queries of which a policy takes some for a prompt are shown apart", "[small]") {
  on_device::require_device();
  Random random(10);
  SmallCache<SnapKV> cache(small_config(2, 20), make_snapkv({.window = 4, .kernel = 3}),
                           {.max_chunk = 40, .max_length = 64});
  const Tokens prompt = small_tokens(random, 8), last = small_tokens(random, 2),
               one = last.rows(0, 1);
  const auto b = prompt.batch(1), single = one.batch(0);
  cache.append<const float>(1, b.k, b.v);
  cache.append<const float>(0, single.k, single.v);
  const auto q = last.batch({0, 2}).q;
  CHECK(support::refused([&] { cache.observe<const float>({0, 2}, q); }, {"sequences: expected"}));
  CHECK_NOTHROW(cache.observe<const float>(1, one.batch(1).q));
}
