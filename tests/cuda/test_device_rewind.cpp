// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cuda/small_cache.hpp"
#include "refusal.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"

// Tokens that a device's cache takes back.

using namespace tersekv;
using on_device::small_config;
using on_device::small_tokens;
using on_device::SmallCache;
using support::Random;

namespace {

/// Steps of two sequences, with wrong guesses in between and without, are the same.
template <class Policy>
void check_guesses() {
  Random random(1);
  using Cache = SmallCache<Policy>;
  Cache plain(small_config(2, 40), {}, {.max_chunk = 40, .max_length = 200}),
      rewound(small_config(2, 40), {}, {.max_chunk = 40, .max_length = 200});
  for (const Index count : {15, 1, 3, 29, 1, 1}) {
    const auto right = small_tokens(random, 2 * count), wrong = small_tokens(random, 2 * 4);
    plain.extend(right.batch({0, 2}));
    const std::vector<float> want = right.out();
    const auto b = right.batch({0, 2}), w = wrong.batch({0, 2});
    rewound.template append<const float>({0, 2}, b.k, b.v, b.token_scores);
    rewound.template append<const float>({0, 2}, w.k, w.v, w.token_scores);
    rewound.rewind({0, 2}, 4);
    rewound.template attend<float>({0, 2}, b.q, b.out);
    rewound.template observe<const float>({0, 2}, b.q);
    rewound.compress({0, 2});
    CHECK(on_device::close(right.out(), want));
  }
  for (Index s = 0; s < 2; ++s) {
    on_device::same_entries(plain, s, rewound, s);
    CHECK(rewound.tokens_seen(s) == plain.tokens_seen(s));
  }
}

}  // namespace

TEST_CASE("device: guessed tokens that are taken back leave nothing", "[small]") {
  on_device::require_device();
  check_guesses<ZSMerge>();
  if (support::kThreadSanitizer) return;
  check_guesses<KeepKV>();
  check_guesses<SnapKV>();
}

TEST_CASE("device: what is taken back gives its pages back, and is the latest append's",
          "[small]") {
  on_device::require_device();
  Random random(2);
  on_device::SmallCacheOnPool<Full> small(8, 1);
  auto& pool = small.pool;
  auto& cache = small.cache;
  const auto some = small_tokens(random, 60), more = small_tokens(random, 80);
  for (const auto* tokens : {&some, &more}) {
    const auto b = tokens->batch(0);
    cache.append<const float>(0, b.k, b.v);
  }
  CHECK(pool.synchronize_idle_pages() == 2);  // 140 entries: three pages for each of two heads
  CHECK(support::refused([&] { cache.rewind(0, 81); }, {"tokens to take back: expected 0 to 80"}));
  cache.rewind(0, 79);
  CHECK(cache.longest(0) == 61);
  CHECK(pool.synchronize_idle_pages() == 6);
  cache.synchronize();
  CHECK(cache.length(0, 0) == 61);
  CHECK(cache.tokens_seen(0) == 61);
  cache.rewind(0, 1);
  cache.compress(0);
  CHECK(support::refused([&] { cache.rewind(0, 1); }, {"expected 0 to 0"}));
}
