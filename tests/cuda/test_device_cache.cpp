// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/small_cache.hpp"
#include "refusal.hpp"
#include "support/compare.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"

// The cache on a device as a whole: verbs, batches, pages, copies.

using namespace tersekv;
using on_device::Array;
using on_device::close;
using on_device::kDim;
using on_device::kGroup;
using on_device::kHeads;
using on_device::same_entries;
using on_device::small_config;
using on_device::small_tokens;
using on_device::SmallCache;
using on_device::Tokens;
using support::Random;

TEST_CASE("device: a batch of unequal sequences is each of them alone", "[small]") {
  on_device::require_device();
  Random random(1);
  using Cache = SmallCache<ZSMerge>;
  Cache batch(small_config(3, 20), {}, {.max_chunk = 40});
  std::vector<Cache> alone;
  for (const Index prompt : {5, 33, 12}) {
    const auto s = std::ssize(alone);
    alone.emplace_back(small_config(1, 20), ZSMerge{},
                       tersekv::cuda::DeviceOptions{.max_chunk = 40});
    const Tokens t = small_tokens(random, prompt);
    batch.extend(t.batch(s));
    const auto together = t.out();
    alone.back().extend(t.batch(0));
    CHECK(close(t.out(), together));
  }
  for (int step = 0; step < 4; ++step) {
    const Tokens t = small_tokens(random, 3);
    batch.extend(t.batch({0, 3}));
    const auto together = t.out();
    std::vector<float> each;
    for (Index s = 0; s < 3; ++s) {
      const Tokens one = t.rows(s, 1);
      alone[static_cast<std::size_t>(s)].extend(one.batch(0));
      const auto out = one.out();
      each.insert(each.end(), out.begin(), out.end());
    }
    CHECK(close(each, together));
  }
  for (Index s = 0; s < 3; ++s) same_entries(batch, s, alone[static_cast<std::size_t>(s)], 0);
}

TEST_CASE("device: extend is append, attend, observe and compress", "[small]") {
  on_device::require_device();
  Random random(2);
  using Cache = SmallCache<KeepKV>;
  Cache one(small_config(1, 20), {}, {.max_chunk = 30}),
      four(small_config(1, 20), {}, {.max_chunk = 30});
  for (const Index count : {25, 1, 1, 3, 1}) {
    const Tokens t = small_tokens(random, count);
    one.extend(t.batch(0));
    const auto want = t.out();
    const auto b = t.batch(0);
    four.append<const float>(0, b.k, b.v);
    four.attend<float>(0, b.q, b.out);
    four.observe<const float>(0, b.q);
    four.compress(0);
    CHECK(close(t.out(), want));
  }
  same_entries(one, 0, four, 0);
}

TEST_CASE("device: out may be q, also where the policy looks at the queries") {
  on_device::require_device();
  Random random(9);
  using Cache = SmallCache<KeepKV>;
  const auto policy = make_keepkv({.window = support::kThreadSanitizer ? 6 : 32,  // the default
                                   .key_rule = KeyRule::along_query});
  const int splits = support::kThreadSanitizer ? 2 : GENERATE(1, 2);
  const tersekv::cuda::DeviceOptions options{.max_chunk = 80, .tuning = {.splits = splits}};
  Cache apart(small_config(1, 100), policy, options),
      in_place(small_config(1, 100), policy, options);
  for (const Index count : {75, support::kThreadSanitizer ? 30 : 75, 1, 3, 1}) {
    const Tokens t = small_tokens(random, count);
    auto b = t.batch(0);
    apart.extend(b);
    const Array<float> q(t.host_rows().q);
    b.out.data = q.data();
    b.q = b.out;
    in_place.extend(b);
    CHECK(close(q.host(), t.out()));
  }
  same_entries(apart, 0, in_place, 0);
}

TEST_CASE("device: attention rows of the caller's kernel are observed as the cache's own") {
  on_device::require_device();
  Random random(3);
  using Cache = SmallCache<H2O>;
  Cache one(small_config(1, 20), {}, {.max_chunk = 30}),
      rows(small_config(1, 20), {}, {.max_chunk = 30});
  for (const Index count : {25, 1, 4}) {
    const Tokens t = small_tokens(random, count);
    one.extend(t.batch(0));
    const auto b = t.batch(0);
    rows.append<const float>(0, b.k, b.v);
    const Index longest = 30 + 20;
    const Array<float> attention(count * kHeads * longest, 0.0f);
    const AttentionRows<float> view{attention.data(), count, kHeads * longest, longest};
    rows.attend<float>(0, b.q, b.out, {.rows = view});
    rows.observe(0, AttentionRows<const float>(view));
    rows.compress(0);
    const AttentionRows<const float> last{view.data, 1, view.row_stride, view.head_stride};
    CHECK(support::refused([&] { rows.observe(0, last); }, {"rows", "0 to 0"}));  // moved since
  }
  same_entries(one, 0, rows, 0);
}

TEST_CASE("device: pages come back to a shared pool when a policy evicts", "[small]") {
  on_device::require_device();
  Random random(4);
  tersekv::cuda::BasicPagePool<on_device::Runtime> pool(8);
  tersekv::cuda::BasicWorkspace<on_device::Runtime> workspace;
  using Cache = SmallCache<KVzap>;
  const auto policy = make_kvzap({.threshold = 0.0f, .window = 4});
  {
    CacheConfig unlimited = small_config(1, 1);
    unlimited.budget = {};
    Cache cache(unlimited, policy, {.max_chunk = 256, .max_length = 256}, pool, workspace);
    CHECK(pool.synchronize_idle_pages() == 8);
    Tokens t = small_tokens(random, 200);
    t.score([](Index token, Index head) { return head == 0 && token >= 60 ? -1.0f : 1.0f; });
    auto b = t.batch(0);
    cache.append<const float>(0, b.k, b.v, b.token_scores);
    CHECK(pool.synchronize_idle_pages() == 0);  // 200 entries: four pages for each of two heads
    cache.compress(0);
    cache.synchronize();
    CHECK(cache.length(0, 0) == 64);
    CHECK(cache.length(0, 1) == 200);
    CHECK(cache.longest(0) == 200);
    CHECK(pool.synchronize_idle_pages() == 3);
    cache.clear(0);
    cache.synchronize();
    CHECK(cache.length(0, 1) == 0);
    CHECK(cache.tokens_seen(0) == 0);
    CHECK(pool.synchronize_idle_pages() == 8);

    cache.append<const float>(0, b.k, b.v, b.token_scores);
    cache.synchronize();
    CHECK(cache.length(0, 0) == 200);
  }
  CHECK(pool.synchronize_idle_pages() == 8);  // the cache is gone
}

TEST_CASE("device: a head that finds no page keeps what it has, and the host is told") {
  on_device::require_device();
  Random random(5);
  on_device::SmallCacheOnPool<Full> small(3, 1);
  auto& cache = small.cache;
  const Tokens t = small_tokens(random, 60), more = small_tokens(random, 10);
  cache.extend(t.batch(0));
  cache.synchronize();
  cache.extend(more.batch(0));  // two heads, one page
  CHECK_THROWS_AS(cache.synchronize(), tersekv::cuda::OutOfPages);
  CHECK(std::min(cache.length(0, 0), cache.length(0, 1)) == 60);
  CHECK(std::max(cache.length(0, 0), cache.length(0, 1)) == 70);
  cache.clear(0);
  cache.extend(t.batch(0));
  cache.synchronize();
  CHECK(cache.length(0, 0) == 60);
  CHECK(cache.length(0, 1) == 60);
}

TEST_CASE("device: a cache goes to the host and back, and goes on as if it had not", "[small]") {
  on_device::require_device();
  Random random(6);
  using Cache = SmallCache<KeepKVPair, Half>;
  Cache here(small_config(2, 20), {}, {.max_chunk = 40}),
      there(small_config(2, 20), {}, {.max_chunk = 40});
  for (Index s = 0; s < 2; ++s) here.extend(small_tokens(random, 30 + 5 * s).batch(s));
  there.extend(small_tokens(random, 7).batch(1));  // is forgotten
  auto host = here.synchronize_to_host();
  tersekv::PagePool large(std::pmr::get_default_resource(), tersekv::PageMemory::large);
  auto apart = host.clone(large);  // columns lie elsewhere in its pages' blocks
  there.synchronize_from_host(apart);
  same_entries(here, 1, there, 1);
  for (int step = 0; step < 3; ++step) {
    const Tokens t = small_tokens(random, 2);
    here.extend(t.batch({0, 2}));
    const auto want = t.out();
    there.extend(t.batch({0, 2}));
    CHECK(t.out() == want);
    const Tokens again = t.rows(1, 1);  // the host's copy can go on as well
    const auto rows = again.host_rows();
    std::vector<float> out(rows.q.size());
    host.extend(nhd_view(rows.q.data(), 1, kHeads * kGroup, kDim),
                nhd_view(rows.k.data(), 1, kHeads, kDim), nhd_view(rows.v.data(), 1, kHeads, kDim),
                nhd_view(out.data(), 1, kHeads * kGroup, kDim));
  }
  for (Index s = 0; s < 2; ++s) same_entries(here, s, there, s);
  CHECK(host.tokens_seen(0) == 33);
}

TEST_CASE("device: chunks of several sequences in one call") {
  on_device::require_device();
  Random random(10);
  using Cache = SmallCache<StreamingLLM>;
  Cache together(small_config(3, 20), {}, {.max_chunk = 40}),
      apart(small_config(3, 20), {}, {.max_chunk = 40});
  const Tokens a = small_tokens(random, 30), b = small_tokens(random, 2);
  const auto chunk = [](const Tokens& t, Index sequence) {
    const auto batch = t.batch(sequence);
    return Chunk<float>{sequence, batch.q, batch.k, batch.v, batch.out};
  };
  std::vector<Chunk<float>> chunks{chunk(a, 2), chunk(b, 0)};
  together.extend(std::span<const Chunk<float>>(chunks));
  apart.extend(b.batch(0));
  apart.extend(a.batch(2));
  for (Index s : {0, 2}) same_entries(together, s, apart, s);
  CHECK(together.length(1, 0) == 0);
  CHECK(together.total_counts().evictions == 2 * 10);
  CHECK(together.keep_ratio() == 22.0 / 32.0);
  chunks[0].sequence = 0;
  CHECK(support::refused([&] { together.extend(std::span<const Chunk<float>>(chunks)); },
                         {"chunks: expected different sequences"}));
}

TEST_CASE("device: the share that is kept is one of the last synchronize") {
  on_device::require_device();
  Random random(8);
  SmallCache<Full> cache(small_config(1, kUnlimited), {}, {.max_chunk = 90, .max_length = 200});
  const Tokens some = small_tokens(random, 60), more = small_tokens(random, 80);
  const auto append = [&](const Tokens& tokens) {
    const auto b = tokens.batch(0);
    cache.append<const float>(0, b.k, b.v);
  };
  append(some);
  CHECK(cache.keep_ratio() == 1.0);
  cache.synchronize();
  append(more);
  CHECK(cache.keep_ratio() == 1.0);
  cache.synchronize();
  cache.rewind(0, 79);
  CHECK(cache.keep_ratio() == 1.0);
  cache.clear(0);
  CHECK(cache.keep_ratio() == 1.0);
}

TEST_CASE("device: per-head budgets and lengths") {
  on_device::require_device();
  Random random(7);
  CacheConfig ragged = small_config(1, 1);
  ragged.budget = {12, 90};
  SmallCache<StreamingLLM> cache(ragged, {}, {.max_chunk = 120});
  cache.extend(small_tokens(random, 110).batch(0));
  for (int step = 0; step < 3; ++step) cache.extend(small_tokens(random, 1).batch(0));
  cache.synchronize();
  CHECK(cache.length(0, 0) == 12);
  CHECK(cache.length(0, 1) == 90);
  CHECK(cache.counts(0, 0).evictions == 113 - 12);
}
