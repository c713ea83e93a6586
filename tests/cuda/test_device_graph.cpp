// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "cuda/graph.hpp"
#include "cuda/small_cache.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"

// Calls that were captured once and are made again, of which the host then knows nothing.

using namespace tersekv;
using on_device::Array;
using on_device::Graph;
using on_device::kHeads;
using support::Random;

namespace {

using Dims = tersekv::cuda::HeadDims<32>;
constexpr Index kWide = 32;

CacheConfig config(Index budget) {
  return {.num_sequences = 2,
          .num_q_heads = kHeads * 4,
          .num_kv_heads = kHeads,
          .head_dim = kWide,
          .budget = budget};
}

/// Replays of a captured step against plain launches, on equal inputs, while lengths change.
template <class Codec, class Policy>
void check_replays(const Policy& policy) {
  using Tokens = on_device::TokensOf<Codec>;
  Random random(1);
  const tersekv::cuda::DeviceOptions options{
      .max_chunk = 64, .max_length = 192, .tuning = {.plan_length = 192}};
  on_device::KVCache<Policy, Codec, Codec, Dims> plain(config(40), policy, options),
      replayed(config(40), policy, options);
  for (Index s = 0; s < 2; ++s) {
    const Tokens prompt(random, 32 + 20 * s, kHeads, 4, kWide);  // below the budget, and above
    plain.extend(prompt.batch(s));
    replayed.extend(prompt.batch(s));
  }
  const Tokens token(random, 2, kHeads, 4, kWide);
  Graph step([&](auto stream) { replayed.extend(token.batch({0, 2}), {}, stream); });
  for (int i = 0; i < (support::kThreadSanitizer ? 2 : 12); ++i) {
    step.replay();
    const std::vector<float> got = token.out();
    plain.extend(token.batch({0, 2}));
    plain.synchronize();
    CHECK(token.out() == got);
  }
  replayed.synchronize();
  for (Index s = 0; s < 2; ++s) {
    for (Index h = 0; h < kHeads; ++h) CHECK(plain.length(s, h) == replayed.length(s, h));
  }
}

/// A cache of one sequence, whose graph of one step has been replayed.
template <class Policy>
struct Replayed {
  Replayed(Random& random, Index prompt, int replays)
      : cache(on_device::small_config(1, 40), {}, {.max_chunk = 64}),
        token(on_device::small_tokens(random, 1)) {
    cache.extend(on_device::small_tokens(random, prompt).batch(0));
    Graph step([&](auto stream) { cache.extend(token.batch(0), {}, stream); });
    for (int i = 0; i < replays; ++i) step.replay();
  }
  on_device::SmallCache<Policy> cache;
  on_device::Tokens token;
};

}  // namespace

TEST_CASE("device: a captured step replays as launches would, bit for bit", "[small]") {
  on_device::require_device();
  check_replays<Half>(ZSMerge{});
  if (support::kThreadSanitizer) return;
  check_replays<Half>(Full{});
  check_replays<Half>(StreamingLLM{});
  check_replays<Half>(H2O{});
  check_replays<Half>(KeepKV{});
  check_replays<float>(ZSMerge{});
}

TEST_CASE("device: rows after replays have as many numbers as the host knows of", "[small]") {
  on_device::require_device();
  Random random(2);
  Replayed<H2O> lagging(random, 20, 15);
  const Index known = lagging.cache.longest(0);
  REQUIRE(known < 35);
  const auto batch = lagging.token.batch(0);
  const auto attended = [&](Index entries) {
    constexpr Index kBehind = 64;
    const Array<float> rows(kHeads * entries + kBehind, -3.0f);
    lagging.cache.attend<float>(0, batch.q, batch.out,
                                {.rows = {rows.data(), 1, kHeads * entries, entries}});
    return rows.host();
  };
  const std::vector<float> some = attended(known);
  CHECK(std::count(some.begin(), some.end(), -3.0f) == 64);  // and none behind
  lagging.cache.synchronize();
  REQUIRE(lagging.cache.longest(0) == 35);
  const std::vector<float> all = attended(35);
  for (Index h = 0; h < kHeads; ++h) {
    CHECK(
        std::equal(some.begin() + h * known, some.begin() + (h + 1) * known, all.begin() + h * 35));
  }
}

TEST_CASE("device: rows given after replays are read as far as the host knows", "[small]") {
  on_device::require_device();
  Random random(3);
  Replayed<H2O> lagging(random, 20, 15);
  const auto batch = lagging.token.batch(0);
  lagging.cache.append<const float>(0, batch.k, batch.v);
  const Index known = lagging.cache.longest(0);
  REQUIRE(known < 36);
  std::vector<float> given(static_cast<std::size_t>(kHeads * known), 0.25f);
  given.resize(given.size() + 64, 1e6f);  // of whatever lies behind them
  const Array<float> rows(given);
  lagging.cache.observe(0, AttentionRows<const float>{rows.data(), 1, kHeads * known, known});
  for (const Entry& entry : lagging.cache.synchronize_to_host().entries(0, kHeads - 1)) {
    CHECK(entry.score < 100);  // 36 rows that sum to 2
  }
}
