// SPDX-License-Identifier: Apache-2.0

// Memory that is asked for before a step: layers that share a pool go on together, or none does.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <vector>

#include "counting_resource.hpp"
#include "refusal.hpp"
#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

using tersekv::Index;

namespace {

constexpr Index kHeads = 2, kDim = 8, kLayers = 3, kBudget = 96;

/// Tokens that any layer may be given.
struct Tokens {
  explicit Tokens(Index count) : tokens(count) {}
  template <class Cache>
  void extend(Cache& cache, tersekv::ExtendOptions options = {}) {
    const auto given = tersekv::nhd_view(rows.data(), tokens, kHeads, kDim);
    cache.extend(given, given, given, tersekv::nhd_view(out.data(), tokens, kHeads, kDim), options);
  }
  Index tokens;
  std::vector<float> rows = support::Random(1).normals(tokens * kHeads * kDim);
  std::vector<float> out = std::vector<float>(rows.size());
};

template <class Policy>
std::vector<tersekv::KVCache<Policy>> layers_on(tersekv::PagePool& pool) {
  std::vector<tersekv::KVCache<Policy>> layers;
  for (Index layer = 0; layer < kLayers; ++layer) {
    layers.emplace_back(tersekv::CacheConfig{.num_q_heads = kHeads,
                                             .num_kv_heads = kHeads,
                                             .head_dim = kDim,
                                             .budget = kBudget,
                                             .layer = layer},
                        pool);
  }
  return layers;
}

}  // namespace

TEMPLATE_TEST_CASE("after reserve, no layer asks for memory", "", tersekv::Full, tersekv::H2O,
                   tersekv::ZSMerge, tersekv::KeepKV, tersekv::MorphKV) {
  for (const Index every : {tersekv::kNever, Index{0}, Index{1}, Index{50}}) {
    CAPTURE(every);
    CountingResource memory;
    tersekv::PagePool pool(&memory), another;
    auto layers = layers_on<TestType>(pool), others = layers_on<TestType>(another);
    for (const Index tokens : {300, 1, 200}) {
      Tokens given(tokens), same(tokens);
      for (auto& layer : layers) layer.reserve(0, tokens, {.compress_every = every});
      memory.fail_after(0);
      for (Index l = 0; l < kLayers; ++l) {
        const auto at = static_cast<std::size_t>(l);
        REQUIRE_NOTHROW(given.extend(layers[at], {.compress_every = every}));
        same.extend(others[at], {.compress_every = every});
        CHECK(given.out == same.out);
        CHECK(layers[at].length(0, 1) == others[at].length(0, 1));
        CHECK(layers[at].bytes() == others[at].bytes());
      }
      memory.fail_after(CountingResource::kNever);
    }
  }
}

TEST_CASE("append asks for no memory that was reserved") {
  CountingResource memory;
  tersekv::PagePool pool(&memory);
  auto layers = layers_on<tersekv::H2O>(pool);
  const Tokens given(500);
  const auto rows = tersekv::nhd_view(given.rows.data(), given.tokens, kHeads, kDim);
  layers[0].reserve(0, given.tokens);
  memory.fail_after(0);
  CHECK_THROWS_AS(layers[1].append(0, rows, rows), std::bad_alloc);
  CHECK(layers[1].length(0, 0) == 0);
  layers[0].append(0, rows, rows);
  CHECK(layers[0].length(0, 0) == given.tokens);
}

TEST_CASE("where memory is short reserve says so before any layer goes on, and holds none of it") {
  CountingResource memory;
  tersekv::PagePool pool(&memory);
  auto layers = layers_on<tersekv::Full>(pool);
  Tokens first(70), more(600);
  for (auto& layer : layers) first.extend(layer);
  // In bytes, of what is none of the tables that remember pages.
  const auto pages_of = [](const auto& layer) {
    return layer.bytes() - layer.memory().bookkeeping;
  };
  const Index pages = pages_of(layers[0]);
  int refused = 0;
  for (std::int64_t successes = 0;; ++successes) {
    pool.trim();
    memory.fail_after(successes);
    bool done = true;
    for (auto& layer : layers) {
      try {
        layer.reserve(0, more.tokens);
        CHECK(pages_of(layer) > pages);
      } catch (const std::bad_alloc&) {
        CHECK(pages_of(layer) == pages);
        done = false;
      }
    }
    memory.fail_after(CountingResource::kNever);
    for (auto& layer : layers) {
      REQUIRE(layer.tokens_seen(0) == first.tokens);
      layer.rewind(0, 0);  // what was reserved goes back
      CHECK(pages_of(layer) == pages);
    }
    if (done) break;
    ++refused;
  }
  CHECK(refused > 20);  // every page of every layer was the first not to come
  for (auto& layer : layers) more.extend(layer);
  CHECK(layers[2].length(0, 0) == first.tokens + more.tokens);
}

TEST_CASE("reserve refuses what no call could bring") {
  tersekv::PagePool pool;
  auto layers = layers_on<tersekv::Full>(pool);
  CHECK(support::refused([&] { layers[0].reserve(1, 5); }, {"sequence", "expected 0 to 0", "1"}));
  CHECK(support::refused([&] { layers[0].reserve(0, -1); }, {"tokens", "at least 0", "-1"}));
  CHECK(support::refused([&] { layers[0].reserve(0, 1, {.compress_every = -2}); },
                         {"compress_every", "-2"}));
  CHECK(support::refused_with<std::length_error>(
      [&] { layers[0].reserve(0, tersekv::kMostTokens + 1); }, {"fewer than 2^31"}));
}
