// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

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
