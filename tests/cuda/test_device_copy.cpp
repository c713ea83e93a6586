// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cuda/small_cache.hpp"
#include "refusal.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"

// Sequences of a device's cache that are copied from another go on as that one would.

using namespace tersekv;
using on_device::small_config;
using on_device::small_tokens;
using on_device::SmallCache;
using support::Random;

namespace {

template <class Policy>
void check_copies() {
  Random random(1);
  using Cache = SmallCache<Policy>;
  Cache plain(small_config(1, 40), {}, {.max_chunk = 80, .max_length = 200}),
      cache(small_config(4, 40), {}, {.max_chunk = 80, .max_length = 200});
  const auto prompt = small_tokens(random, 70), old = small_tokens(random, 3 * 11);
  cache.extend(old.batch({1, 3}));
  plain.extend(prompt.batch(0));
  cache.extend(prompt.batch(0));
  cache.copy(0, {1, 2});  // the last keeps what it has
  CHECK(cache.tokens_seen(2) == 70);
  CHECK(cache.tokens_seen(3) == 11);
  for (const Index s : {1, 2}) on_device::same_entries(plain, 0, cache, s);  // scores, too
  for (const Index count : {1, 1, 9}) {
    // The same for the original and one copy, other tokens for the second.
    const auto next = small_tokens(random, count), other = small_tokens(random, count);
    plain.extend(next.batch(0));
    const std::vector<float> want = next.out();
    cache.extend(other.batch(2));
    for (const Index s : {0, 1}) {
      cache.extend(next.batch(s));
      CHECK(on_device::close(next.out(), want));
    }
  }
  for (const Index s : {0, 1}) on_device::same_entries(plain, 0, cache, s);
}

}  // namespace

TEST_CASE("device: copied sequences go on as their original", "[small]") {
  on_device::require_device();
  check_copies<ZSMerge>();
  if (support::kThreadSanitizer) return;
  check_copies<KeepKV>();
  check_copies<MorphKV>();
}

TEST_CASE(
    "device: a copy takes pages, gives those of what it replaces back, or says that it cannot",
    "[small]") {
  on_device::require_device();
  Random random(2);
  on_device::SmallCacheOnPool<Full> small(10, 3);
  auto& pool = small.pool;
  auto& cache = small.cache;
  const auto some = small_tokens(random, 70), more = small_tokens(random, 130);
  cache.extend(some.batch(0));
  cache.extend(more.batch(1));
  CHECK(pool.synchronize_idle_pages() == 0);  // two pages and three for each of two heads
  cache.copy(0, 1);
  CHECK(pool.synchronize_idle_pages() == 2);
  cache.synchronize();
  CHECK(cache.length(1, 1) == 70);
  CHECK(support::refused(
      [&] {
        cache.copy(1, {0, 3});
      },
      {"to: expected other sequences than the original, got 1"}));
  CHECK(support::refused([&] { cache.copy(3, 0); }, {"expected 0 to 2"}));
  cache.copy(1, 2);  // four pages are wanted
  CHECK_THROWS_AS(cache.synchronize(), tersekv::cuda::OutOfPages);
  cache.clear(2);
  cache.synchronize();
  CHECK(pool.synchronize_idle_pages() == 2);
  CHECK(cache.length(0, 0) == 70);
}
