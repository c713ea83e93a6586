// SPDX-License-Identifier: Apache-2.0

// Policies of others that break their word: what they do to memory is bounded all the same.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tersekv/tersekv.hpp>
#include <thread>
#include <vector>

#include "refusal.hpp"

namespace {

using tersekv::Index;

/// Promises to keep to its budget, and forgets it after `diligence` steps.
struct Forgetful : tersekv::PolicyBase {
  static constexpr bool needs_budget = true;
  Index diligence = 0;
  Index max_length(const tersekv::Shape&, Index budget, Index) const { return budget; }
  template <class Team, class Head>
  void compress(Team& team, const Head& head) const {
    if (head.tokens_seen() > diligence || head.length() <= head.budget()) return;
    std::int32_t* victims = head.scratch().slots;
    victims[0] = 0;
    tersekv::remove_entries(team, head, victims, 1);
  }
};

/// Throws where a head's token has a score above 0.
struct Picky : tersekv::PolicyBase {
  static constexpr bool needs_token_scores = true;
  template <class Team, class Head>
  void append(Team&, const Head&, Index, Index, const float* scores) const {
    if (scores[0] > 0) throw std::runtime_error("as told");
  }
};

/// A thread of its own for every task.
struct ThreadPerTask {
  int workers() const { return 4; }
  template <class F>
  void run(Index n, F&& f) const {
    std::vector<std::thread> threads;
    for (Index task = 0; task < n; ++task)
      threads.emplace_back([&f, task] { f(task, static_cast<int>(task)); });
    for (std::thread& thread : threads) thread.join();
  }
};

template <class Executor>
void check_broken_promise(Index diligence) {
  constexpr Index kHeads = 4, kDim = 8, kTokens = 1000;
  Forgetful policy;
  policy.diligence = diligence;
  tersekv::KVCache<Forgetful, float, float, Executor> cache(
      {.num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim, .budget = 100}, policy,
      Executor{});
  const std::vector<float> rows(static_cast<std::size_t>(kTokens * kHeads * kDim), 0.5f);
  std::vector<float> out(rows.size());
  const auto given = tersekv::nhd_view(rows.data(), kTokens, kHeads, kDim);
  const auto extend = [&] {
    cache.extend(tersekv::Chunk<float>{.q = given,
                                       .k = given,
                                       .v = given,
                                       .out = tersekv::nhd_view(out.data(), kTokens, kHeads, kDim)},
                 {.compress_every = 1});
  };
  if (diligence >= kTokens) {
    CHECK_NOTHROW(extend());
    return;
  }
  CHECK(support::refused_with<std::logic_error>(extend, {"at most 100", "max_length", "101"}));
  // What came until then is there, and the cache can be used.
  CHECK(cache.length(0, kHeads - 1) <= 101);
  cache.clear();
  cache.append(0, given.rows(0, 7), given.rows(0, 7));
  CHECK(cache.length(0, 0) == 7);
}

}  // namespace

TEST_CASE("a policy that holds more than it said is told, and writes nowhere else") {
  for (const Index diligence : {0, 500, 1000}) {
    INFO("until token " << diligence);
    check_broken_promise<tersekv::SerialExecutor>(diligence);
    check_broken_promise<ThreadPerTask>(diligence);
#if defined(_OPENMP)
    check_broken_promise<tersekv::OpenMPExecutor>(diligence);
#endif
  }
}

TEST_CASE("a policy that holds more than it said is told where tokens come one by one, too") {
  constexpr Index kDim = 8, kDiligent = 3;
  for (const Index budget : {Index{10}, 4 * tersekv::kSection}) {  // several share a long one
    CAPTURE(budget);
    Forgetful policy;
    policy.diligence = budget + kDiligent;
    tersekv::KVCache<Forgetful, float, float, ThreadPerTask> cache(
        {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = kDim, .budget = budget}, policy);
    const std::vector<float> rows(static_cast<std::size_t>(budget * kDim), 0.5f);
    std::vector<float> out(rows.size());
    const auto extend = [&](Index tokens, Index every) {
      const auto given = tersekv::nhd_view(rows.data(), tokens, Index{1}, kDim);
      cache.extend(given, given, given, tersekv::nhd_view(out.data(), tokens, Index{1}, kDim),
                   {.compress_every = every});
    };
    const auto is_told = [&](Index most) {
      return support::refused_with<std::logic_error>(
          [&] { extend(1, 0); },
          {"at most " + std::to_string(most), "max_length", std::to_string(most + 1)});
    };
    extend(budget, 0);
    for (Index token = 0; token < kDiligent; ++token) extend(1, 0);
    CHECK(is_told(budget));
    CHECK_NOTHROW(extend(1, tersekv::kNever));  // which compresses nothing
    CHECK(is_told(budget + 2));                 // as many as there were may stay
  }
}

TEST_CASE("tokens that a policy's exception kept from some heads are not taken back from these") {
  constexpr Index kHeads = 3, kTokens = 2;  // so few that the caller alone goes through the heads
  tersekv::KVCache<Picky> cache({.num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = 1});
  const std::vector<float> rows(kTokens * kHeads, 0.5f), scores{0, 1, 0, 0, 0, 0};
  const auto given = tersekv::nhd_view(rows.data(), kTokens, kHeads, Index{1});
  CHECK_THROWS_AS(cache.append(0, given, given, {scores.data(), kHeads}), std::runtime_error);
  REQUIRE(cache.length(0, 0) == kTokens);
  REQUIRE(cache.length(0, 2) == 0);  // whose turn did not come
  CHECK(support::refused([&] { cache.rewind(0, kTokens); }, {"0 to 0"}));
  cache.clear();
  const std::vector<float> zeros(scores.size());
  cache.append(0, given, given, {zeros.data(), kHeads});
  cache.rewind(0, kTokens);
  CHECK(cache.length(0, 2) == 0);
}

namespace {

/// Numbers its workers as it likes.
struct Misnumbering {
  int first = 0;
  int workers() const { return 2; }
  template <class F>
  void run(Index n, F&& f) const {
    for (Index task = 0; task < n; ++task) f(task, first + static_cast<int>(task % 2));
  }
};

}  // namespace

TEST_CASE("an executor whose workers have other numbers is told, and no scratch is touched") {
  constexpr Index kHeads = 4, kDim = 8, kTokens = 40;
  const std::vector<float> rows(kTokens * kHeads * kDim, 0.5f);
  std::vector<float> out(rows.size());
  const auto given = tersekv::nhd_view(rows.data(), kTokens, kHeads, kDim);
  for (const int first : {0, 1, -1, 1000000}) {
    tersekv::KVCache<tersekv::Full, float, float, Misnumbering> cache(
        {.num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim}, {}, Misnumbering{first});
    const auto extend = [&] {
      cache.extend(given, given, given, tersekv::nhd_view(out.data(), kTokens, kHeads, kDim));
    };
    if (first == 0) {
      CHECK_NOTHROW(extend());
    } else {
      CHECK(support::refused_with<std::logic_error>(extend, {"worker: expected 0 to 1"}));
      cache.clear();
      CHECK(cache.length(0, 0) == 0);
    }
  }
}
