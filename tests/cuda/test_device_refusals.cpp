// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "cuda/device_tokens.hpp"
#include "refusal.hpp"
#include "tersekv/tersekv.hpp"

// What the cache on a device refuses, and that it is then as before.

using namespace tersekv;
using on_device::Tokens;
using support::Random;

namespace {

constexpr Index kDim = 16, kHeads = 2, kGroup = 2;
template <class Policy>
using DeviceCache = on_device::KVCache<Policy, float, float, tersekv::cuda::HeadDims<kDim>>;

CacheConfig config(Index sequences, Index budget) {
  return {.num_sequences = sequences,
          .num_q_heads = kHeads * kGroup,
          .num_kv_heads = kHeads,
          .head_dim = kDim,
          .budget = budget};
}
Tokens tokens(Random& random, Index count) { return Tokens(random, count, kHeads, kGroup, kDim); }

}  // namespace

TEST_CASE("device: bad arguments are refused before anything is launched", "[small]") {
  on_device::require_device();
  Random random(8);
  using Cache = DeviceCache<H2O>;
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
  refused([] { DeviceCache<Full>({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16}); },
          "max_length: expected a number");

  Cache cache(config(2, 20), {}, {.max_chunk = 40});
  const Tokens t = tokens(random, 4);
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
  refused([&] { cache.extend(with([](auto& x) { x.out.head_stride = 0; })); }, "out: expected");
  refused([&] { cache.extend(b, {.compress_every = -2}); }, "compress_every: expected");
  refused([&] { cache.attend<float>(0, t.rows(0, 2).batch(0).q, TokenView<float>{}); },
          "tokens of q: expected 0 to 1");
  CHECK(support::refused_with<std::length_error>(
      [&] { cache.extend(tokens(random, 70).batch(0), {.compress_every = kNever}); },
      {"entries of a head: expected at most 64"}));
  DeviceCache<Full> full(config(1, kUnlimited), {}, {.max_length = 64});
  CHECK(support::refused_with<std::length_error>(
      [&] { full.extend(tokens(random, 100).batch(0), {.compress_every = 1}); },
      {"expected at most 64", "got up to 100"}));
  cache.synchronize();
  CHECK(cache.tokens_seen(0) == 4);
  CHECK(cache.length(0, 0) == 4);
}
