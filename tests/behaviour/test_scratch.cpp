// SPDX-License-Identifier: Apache-2.0

// Scratch memory: where it lies, and that caches on one pool work in the same.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tersekv/tersekv.hpp>
#include <utility>
#include <vector>

#include "counting_resource.hpp"
#include "support/random.hpp"

namespace {

using namespace tersekv;

/// Remembers where the memory lies that it was shown last.
struct Watcher : PolicyBase {
  static constexpr Observes observes = Observes::logits;
  std::vector<const void*>* seen = nullptr;
  template <class Team, class Head>
  void observe(Team&, const Head& head, const Observation& row) const {
    *seen = {row.logits, row.query, head.scratch().floats, head.key_page(0), head.value_page(0)};
  }
};

/// Four workers, one after the other.
struct FourWorkers {
  int workers() const { return 4; }
  template <class F>
  void run(Index n, F&& f) const {
    for (Index task = 0; task < n; ++task) f(task, static_cast<int>(task % 4));
  }
};

constexpr Index kHeads = 3, kDim = 5;

/// Some tokens, the same for all who draw as many.
struct Rows {
  explicit Rows(Index tokens) : count(tokens) {
    support::Random random(17);
    for (auto* x : {&q, &k, &v}) *x = random.normals(tokens * kHeads * kDim);
    out.resize(q.size());
  }
  template <class Cache>
  std::vector<float> into(Cache& cache) {
    const auto view = [&](std::vector<float>& x) {
      return nhd_view(x.data(), count, kHeads, kDim);
    };
    cache.template extend<float>(view(q), view(k), view(v), view(out));
    return out;
  }
  Index count;
  std::vector<float> q, k, v, out;
};

CacheConfig config(Index budget = kUnlimited) {
  return {.num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim, .budget = budget};
}

TEST_CASE("scratch: calls of no tokens need none, not even the first") {
  for (const Index group : {1, 16}) {
    CacheConfig shape = config();
    shape.num_q_heads *= group;
    shape.budget = 8;
    KVCache<H2O, float, float, FourWorkers> cache(shape);
    std::vector<float> nothing(1);
    const auto none = [&](Index heads) { return nhd_view(nothing.data(), 0, heads, kDim); };
    const auto q = none(shape.num_q_heads), k = none(kHeads);
    CHECK_NOTHROW(cache.attend(0, q, q));
    CHECK_NOTHROW(cache.extend(Chunk<float>{.q = q, .k = k, .v = k, .out = q}));
    CHECK_NOTHROW(cache.observe(0, q));
    CHECK(cache.tokens_seen(0) == 0);
  }
}

TEST_CASE("scratch: no vector of what attention and policies work in lies in two cache lines") {
  std::vector<const void*> seen;
  Watcher watcher;
  watcher.seen = &seen;
  KVCache<Watcher> cache(config(), watcher);
  for (const Index tokens : {1, 7, 70}) {
    Rows(tokens).into(cache);
    REQUIRE(seen.size() == 5);
    for (const void* memory : seen) CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
  }
}

TEST_CASE("scratch: caches on a pool work in the same memory, also after it has moved") {
  std::vector<const void*> seen;
  Watcher watcher;
  watcher.seen = &seen;
  // What lies before it depends on how many tokens came together, up to 64, not on lengths.
  const auto query = [&] { return seen[1]; };
  PagePool pool;
  KVCache<Watcher> one(config(), watcher, pool), two(config(), watcher, pool);
  Rows(1).into(one);
  const void* before = query();
  Rows(1).into(two);
  CHECK(query() == before);
  Rows(3000).into(two);
  const void* after = query();
  CHECK(after != before);
  Rows(100).into(one);
  CHECK(query() == after);
  KVCache<Watcher> moved(std::move(one));
  Rows(1).into(moved);
  CHECK(query() == after);
}

TEST_CASE("scratch: a pool has as much for many caches as for the largest") {
  const auto scratch = [](Index caches, Index tokens) {
    PagePool pool;
    std::vector<KVCache<H2O>> layers;
    for (Index i = 0; i < caches; ++i) layers.emplace_back(config(64), H2O{}, pool);
    for (KVCache<H2O>& layer : layers) Rows(tokens).into(layer);
    for (KVCache<H2O>& layer : layers) CHECK(layer.memory().workspace == 0);
    CHECK(pool.idle_bytes() ==
          pool.idle_pages() * pool.page_bytes() + pool.scratch_bytes() + pool.bookkeeping_bytes());
    return pool.scratch_bytes();
  };
  CHECK(scratch(1, 200) > 0);
  CHECK(scratch(8, 200) == scratch(1, 200));
  CHECK(scratch(2, 900) > scratch(2, 200));
  KVCache<H2O> alone(config(64), H2O{});
  Rows(200).into(alone);
  CHECK(alone.memory().workspace == scratch(1, 200));
}

TEST_CASE(
    "scratch: caches on a pool give the bits of caches alone, whoever makes it grow between") {
  PagePool pool;
  KVCache<KeepKV> shared(config(20), KeepKV{}, pool), alone(config(20), KeepKV{});
  KVCache<KeepKV, float, float, FourWorkers> other(config(), KeepKV{}, pool);
  for (const Index tokens : {1, 30, 1, 1, 90, 1, 300, 1, 1}) {
    CHECK(Rows(tokens).into(shared) == Rows(tokens).into(alone));
    const Index before = pool.scratch()->generation();
    Rows(tokens).into(other);
    if (tokens >= 90) CHECK(pool.scratch()->generation() > before);
  }
}

TEST_CASE("scratch: room for a prompt's rows comes with the prompt, and is given back") {
  constexpr Index tokens = 128;
  Rows rows(tokens);
  const auto at = [](std::vector<float>& x, Index first, Index count) {
    return nhd_view(x.data() + first * kHeads * kDim, count, kHeads, kDim);
  };
  KVCache<Full> singly(config(), Full{}), at_once(config(), Full{});
  for (Index t = 0; t < tokens; ++t) singly.append(0, at(rows.k, t, 1), at(rows.v, t, 1));
  at_once.append(0, at(rows.k, 0, tokens), at(rows.v, 0, tokens));
  CHECK(singly.memory().workspace < at_once.memory().workspace);
  std::vector<float> outputs[2];
  for (KVCache<Full>* cache : {&singly, &at_once}) {
    cache->attend<float>(0, at(rows.q, 0, tokens), at(rows.out, 0, tokens));
    outputs[cache == &singly] = rows.out;
  }
  CHECK(outputs[0] == outputs[1]);
  at_once.trim();
  CHECK(singly.memory().workspace == at_once.memory().workspace);
}

TEST_CASE("scratch: a prompt's queries times its entries are never stored") {
  constexpr Index tokens = 1024,
                  matrix = tokens * tokens * Index{sizeof(float)};  // of a query head
  CountingResource resource;
  PagePool pool(&resource);
  KVCache<H2O> cache(config(), H2O{}, pool);  // wants attention per entry as well
  Rows(tokens).into(cache);
  CHECK(cache.length(0, 0) == tokens);
  CHECK(resource.peak() - pool.pages() * pool.page_bytes() < matrix / 8);
}

TEST_CASE("scratch: it is given back by the last cache that trims, and by a pool without caches") {
  PagePool pool;
  std::optional<KVCache<H2O>> one(std::in_place, config(16), H2O{}, pool);
  std::optional<KVCache<H2O>> two(std::in_place, config(16), H2O{}, pool);
  Rows(4).into(*one);
  const Index little = pool.scratch_bytes();
  Rows(2000).into(*two);
  const Index much = pool.scratch_bytes();
  CHECK(much > 2 * little);
  one->trim();
  pool.trim();
  CHECK(pool.scratch_bytes() == much);  // each may be what the other needs
  two.reset();
  one->trim();
  CHECK(pool.scratch_bytes() <= little);
  Rows(4).into(*one);
  one.reset();
  CHECK(pool.scratch_bytes() > 0);
  pool.trim();
  CHECK(pool.bytes() == 0);
}

TEST_CASE("scratch: what only a cache of more workers used is given back after it") {
  PagePool pool, other;
  KVCache<H2O> alone(config(16), H2O{}, other), one(config(16), H2O{}, pool);
  {
    KVCache<H2O, float, float, FourWorkers> many(config(16), H2O{}, pool);
    Rows(4).into(many);
  }
  Rows(4).into(one);
  Rows(4).into(alone);
  CHECK(pool.scratch_bytes() > other.scratch_bytes());
  one.trim();
  alone.trim();
  CHECK(pool.scratch_bytes() == other.scratch_bytes());
}

TEST_CASE("scratch: a clone on another pool takes nothing from its original's") {
  PagePool pool, other;
  KVCache<KeepKV> one(config(200), KeepKV{}, pool);
  Rows(300).into(one);
  const Index pages = pool.pages(), idle = pool.idle_bytes();
  KVCache<KeepKV> copy = one.clone(other);
  CHECK(copy.memory().keys == one.memory().keys);
  CHECK(other.pages() - other.idle_pages() == pages - pool.idle_pages());
  CHECK(other.scratch_bytes() > 0);
  CHECK(Rows(5).into(copy) == Rows(5).into(one));
  CHECK(pool.pages() == pages);
  CHECK(pool.idle_bytes() == idle);
  PagePool of_other_pages;
  of_other_pages.set_page_bytes(64);
  CHECK_THROWS_AS(one.clone(of_other_pages), std::invalid_argument);
  CHECK(pool.idle_bytes() == idle);
}

}  // namespace
