// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <new>
#include <vector>

#include "conformance.hpp"
#include "counting_resource.hpp"
#include "tersekv/tersekv.hpp"

// `bytes()` is what an allocator sees, and what is no longer needed is given back.

namespace {

using namespace conformance;

Index pages_for(Index entries, const CacheConfig& config) {
  return (entries + config.page_size - 1) / config.page_size;
}
Index live_pages(const AnyCache& cache) {
  Index pages = 0;
  for (Index s = 0; s < cache.config().num_sequences; ++s) {
    for (Index h = 0; h < cache.config().num_kv_heads; ++h) {
      pages += pages_for(cache.length(s, h), cache.config());
    }
  }
  return pages;
}

/// One random operation on one of the cache's sequences.
void operate(AnyCache& cache, support::Random& random) {
  const Index s = random.integer(0, cache.config().num_sequences - 1);
  Tokens tokens(random, cache.config(), random.pick(std::vector<Index>{0, 1, 1, 1, 2, 7, 40}));
  switch (random.integer(0, 9)) {
    case 0:
      cache.append(s, tokens.all());
      return cache.rewind(s, random.integer(0, tokens.count));
    case 1:
      return cache.compress(s);
    case 2:
      return cache.clear(s);
    case 3:
      return extend(cache, tokens.all(s), tersekv::kNever);
    case 4:
      return extend(cache, tokens.all(s), 5);
    case 5:
      return cache.copy(cache.config().num_sequences - 1 - s, s);
    default:
      return extend(cache, tokens.all(s));
  }
}

TEST_CASE("memory: bytes() is what the memory resource has given out, after every operation") {
  FOR_EACH_POLICY(policy) {
    for (const Runs runs : {Runs::serially, Runs::shuffled}) {
      support::Random random(71);
      INFO(random);
      CountingResource resource;
      {
        const auto cache =
            policy.make(small_config(policy, 2), {.runs = runs, .resource = &resource});
        CHECK(cache->bytes() == resource.bytes());
        for (int i = 0; i < 60; ++i) {
          operate(*cache, random);
          CHECK(cache->bytes() == resource.bytes());
          if (i % 20 == 10) {
            const auto clone = cache->clone();
            CHECK(cache->bytes() + clone->bytes() == resource.bytes());
            cache->pool().trim();
          }
        }
      }
      CHECK(resource.bytes() == 0);
      CHECK(resource.sound());
    }
  }
}

TEST_CASE("memory: with a shared pool, the caches and the idle pages are what was given out") {
  FOR_EACH_POLICY(policy) {
    for (const auto memory : {tersekv::PageMemory::single, tersekv::PageMemory::large}) {
      support::Random random(72);
      CountingResource resource;
      {
        tersekv::PagePool pool(&resource, memory);
        CacheConfig two_sequences = small_config(policy, 2), three = small_config(policy, 3);
        // A few pages to a block.
        if (memory == tersekv::PageMemory::large) two_sequences.page_size = three.page_size = 2048;
        const auto one = policy.make(two_sequences, {.pool = &pool});
        const auto two = policy.make(three, {.runs = Runs::shuffled, .pool = &pool});
        for (int i = 0; i < 60; ++i) {
          operate(random.chance(0.5) ? *one : *two, random);
          CHECK(one->bytes() + two->bytes() + pool.idle_bytes() == resource.bytes());
          CHECK(lent_pages(pool) == live_pages(*one) + live_pages(*two));
          if (i % 20 == 10) pool.trim();
        }
      }
      CHECK(resource.bytes() == 0);
      CHECK(resource.sound());
    }
  }
}

TEST_CASE("memory: the parts of memory() are what the live entries need") {
  FOR_EACH_POLICY(policy) {
    support::Random random(73);
    const CacheConfig config = small_config(policy);
    for (const Storage storage : kStorages) {
      const auto cache = policy.make(config, {.storage = storage});
      Tokens tokens(random, config, total(kTalk));
      feed(*cache, tokens);
      const Index entries = cache->length(0, 0) + cache->length(0, 1), dim = config.head_dim;
      const Index width = storage == Storage::floats ? 4 : (storage == Storage::int8 ? 1 : 2);
      const Index scale = storage == Storage::int8 ? 4 : 0;  // and keys are in fours
      const Index key = (storage == Storage::int8 ? (dim + 3) / 4 * 4 : dim) * width + scale;
      const tersekv::MemoryUsage usage = cache->memory();
      CHECK(usage.keys == entries * key);
      CHECK(usage.values == entries * (dim * width + scale));
      CHECK(usage.positions == entries * 4);
      CHECK((usage.weights == 0 || usage.weights == entries * 4));
      CHECK(usage.statistics % (4 * entries) == 0);
      CHECK(usage.slack >= 0);
      CHECK(usage.total() == cache->bytes());
    }
  }
}

TEST_CASE("memory: appending takes a page only when the last one is full") {
  FOR_EACH_POLICY(policy) {
    support::Random random(74);
    const CacheConfig config = small_config(policy);
    const auto cache = policy.make(config, {});
    Tokens tokens(random, config, 100);
    for (Index i = 0; i < 100; ++i) {
      cache->append(0, tokens.chunk(i, 1));
      CHECK(cache->pool().pages() == 2 * pages_for(i + 1, config));
      CHECK(cache->pool().idle_pages() == 0);
    }
  }
}

TEST_CASE("memory: a long head takes pages in runs, within its budget, if there is memory") {
  const std::vector<float> ones(4, 1.0f);
  const auto row = tersekv::nhd_view(ones.data(), 1, 1, 4);
  const auto in_runs = [](Index pages, Index run) { return (pages + run - 1) / run * run; };
  CountingResource resource;
  tersekv::PagePool pool(&resource);
  for (const Index page_size : {16, 64}) {
    const CacheConfig config{
        .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4, .page_size = page_size};
    CountingResource of_cache;
    tersekv::KVCache<tersekv::Full> cache(config, {}, {}, &of_cache);
    for (Index n = 1; n <= 4300; ++n) {
      cache.append(0, row, row);
      const Index run = n < 2048 ? 1 : (n < 4096 && page_size == 64 ? 2 : 4);
      REQUIRE(cache.pool().pages() == in_runs(pages_for(n, config), run));
      REQUIRE(cache.bytes() == of_cache.bytes());
    }
    CHECK(cache.clone().pool().pages() == cache.pool().pages());
    CacheConfig small = config;
    small.budget = 2100;
    tersekv::KVCache<tersekv::StreamingLLM> limited(small);
    std::vector<float> out(4);
    for (Index n = 1; n <= 2200; ++n) {
      limited.extend(row, row, row, tersekv::nhd_view(out.data(), 1, 1, 4));
      REQUIRE(limited.pool().pages() <= pages_for(2101, config));
    }
  }
  const CacheConfig config{.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4, .page_size = 16};
  tersekv::KVCache<tersekv::Full> cache(config, {}, pool);
  while (cache.length(0, 0) < 132 * 16) cache.append(0, row, row);
  REQUIRE(pool.pages() == 132);
  for (std::int64_t successes = 0; cache.length(0, 0) == 132 * 16; ++successes) {
    resource.fail_after(successes);
    try {
      cache.append(0, row, row);
      CHECK(pool.pages() == 133);  // what would complete the run was not to be had
    } catch (const std::bad_alloc&) {
      CHECK(lent_pages(pool) == 132);
    }
  }
  resource.fail_after(CountingResource::kNever);
  while (cache.length(0, 0) < 134 * 16) cache.append(0, row, row);
  CHECK(pool.pages() == 136);
}

TEST_CASE("memory: after every call a head holds no page it does not need") {
  FOR_EACH_POLICY(policy) {
    support::Random random(75);
    const CacheConfig config = small_config(policy);
    const auto cache = policy.make(config, {});
    Tokens tokens(random, config, total(kTalk));
    feed(*cache, tokens, kTalk, 0,
         [&](Index, Index) { CHECK(lent_pages(cache->pool()) == live_pages(*cache)); });
    cache->clear();
    CHECK(cache->pool().idle_pages() == cache->pool().pages());
  }
}

const PolicyCase& find(const std::string& name) {
  const auto found = std::find_if(policies().begin(), policies().end(),
                                  [&](const PolicyCase& p) { return p.name == name; });
  REQUIRE(found != policies().end());
  return *found;
}

TEST_CASE("memory: KVzap's heads keep what passes the threshold and give the other pages back") {
  const PolicyCase& kvzap = find("KVzap");  // threshold -3, window 9
  CountingResource resource;
  support::Random random(76);
  const CacheConfig config = small_config(kvzap);
  const auto cache = kvzap.make(config, {.resource = &resource});
  Tokens tokens(random, config, 400);
  for (Index t = 0; t < 400; ++t) {
    tokens.scores[static_cast<std::size_t>(2 * t)] = t % 100 == 0 ? -1.0f : -5.0f;
    tokens.scores[static_cast<std::size_t>(2 * t + 1)] = t % 2 == 0 ? -3.0f : -3.5f;
  }
  extend(*cache, tokens.chunk(0, 300));
  CHECK(cache->length(0, 0) == 3 + 9);
  CHECK(cache->length(0, 1) == 150 + 5);  // 291, 293, ... 299 fail, but are in the window
  extend(*cache, tokens.chunk(300, 100));
  CHECK(cache->length(0, 0) == 4 + 9);
  const Index idle = cache->pool().idle_pages();
  CHECK(idle == cache->pool().pages() - live_pages(*cache));
  CHECK(idle >= 100 / config.page_size);
  const Index before = resource.bytes();
  const std::int64_t reported = cache->bytes();
  cache->pool().trim();
  CHECK(resource.bytes() == before - idle * cache->pool().page_bytes());
  CHECK(cache->bytes() == reported - idle * cache->pool().page_bytes());
  CHECK(cache->pool().idle_pages() == 0);
  Tokens more(random, config, 50);
  extend(*cache, more.all());  // a trimmed pool grows again
  CHECK(cache->bytes() == resource.bytes());
}

TEST_CASE(
    "memory: trim gives back what a long prompt has left behind, and nothing that is needed") {
  for (const PolicyCase& policy : policies()) {
    CAPTURE(policy.name);
    support::Random random(78);
    CountingResource resource;
    const CacheConfig config = small_config(policy);
    const auto cache = policy.make(config, {.resource = &resource});
    Tokens prompt(random, config, 300), more(random, config, 20);
    extend(*cache, prompt.all());
    const Index before = cache->bytes();
    const auto untouched = cache->clone();
    resource.fail_after(0);
    CHECK_THROWS_AS(cache->trim(), std::bad_alloc);  // it needs memory for smaller scratch first
    resource.fail_after(CountingResource::kNever);
    CHECK(cache->bytes() == before);
    cache->trim();
    CHECK(cache->bytes() == resource.bytes() - untouched->bytes());
    resource.fail_after(0);
    CHECK_NOTHROW(cache->trim());  // nothing is too large, so nothing is asked for
    resource.fail_after(CountingResource::kNever);
    if (policy.has_budget) CHECK(cache->bytes() < before / 2);
    CHECK(cache->pool().idle_pages() == 0);
    CHECK(same_state(*cache, *untouched));
    Tokens again = more;
    feed(*cache, more, {1, 1, 18});
    feed(*untouched, again, {1, 1, 18});
    CHECK(same_outputs(more, again));
  }
}

TEST_CASE("memory: pages that one cache gives up serve another") {
  const PolicyCase& full = find("Full");
  support::Random random(77);
  tersekv::PagePool pool;
  const CacheConfig config = small_config(full);
  const auto one = full.make(config, {.pool = &pool}), two = full.make(config, {.pool = &pool});
  Tokens tokens(random, config, 64);
  extend(*one, tokens.all());
  one->clear();
  extend(*two, tokens.all());
  CHECK(pool.pages() == 8);
  CHECK(pool.bytes() ==
        pool.pages() * pool.page_bytes() + pool.scratch_bytes() + pool.bookkeeping_bytes());
  two->clear();
  CHECK(pool.idle_bytes() == pool.bytes());
}

TEST_CASE("memory: a pool refuses caches whose pages are of another size") {
  const PolicyCase& full = find("Full");
  tersekv::PagePool pool;
  CacheConfig config = small_config(full);
  const auto cache = full.make(config, {.pool = &pool});
  config.page_size = 32;
  CHECK_THROWS_AS(full.make(config, {.pool = &pool}), std::invalid_argument);
  CHECK_THROWS_AS(
      full.make(small_config(full), {.storage = Storage::half_and_bfloat, .pool = &pool}),
      std::invalid_argument);
}

}  // namespace
