// SPDX-License-Identifier: Apache-2.0

// With TERSEKV_CHECKED, a part that uses what it has not asked for hears of it.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <stdexcept>
#include <string>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "refusal.hpp"

namespace {

using namespace tersekv;

enum class Mistake { none, statistic, integer, reg, int_reg, set_int_reg, slot, element };

struct Careless : ScorerBase {
  Mistake mistake = Mistake::none;
  Index statistics(const Shape&) const { return mistake == Mistake::none ? 1 : 0; }

  template <class Team, class Head>
  void append(Team& team, const Head& head, Index first, Index count, const float*) const {
    team.for_each(count, [&](Index i) {
      if (mistake == Mistake::none || mistake == Mistake::statistic) head.stat(0, first + i) = 1;
      if (mistake == Mistake::integer) head.int_stat(0, first + i) = 1;
      if (mistake == Mistake::reg) head.reg(0) = 1;
      if (mistake == Mistake::int_reg) head.set_position(first, head.int_reg(0));
      if (mistake == Mistake::set_int_reg) head.set_int_reg(0, 1);
      if (mistake == Mistake::slot) head.set_position(first + count, 1);
      if (mistake == Mistake::element) head.set_key(first + i, head.head_dim(), 1);
    });
  }
  template <class Head>
  float score(const Head& head, Index slot) const {
    return head.stat(0, slot);
  }
};

void run(Mistake mistake) {
  Careless scorer;
  scorer.mistake = mistake;
  KVCache<Policy<Careless, LowestScore, Drop>> cache(
      {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4, .budget = 4},
      Policy<Careless, LowestScore, Drop>(scorer));
  const std::vector<float> rows(20);
  cache.append(0, nhd_view(rows.data(), 5, 1, 4), nhd_view(rows.data(), 5, 1, 4));
}

TEST_CASE("a policy part that uses what is not there is told") {
  CHECK_NOTHROW(run(Mistake::none));
  const auto told = [](Mistake mistake, const char* of_what) {
    return support::refused_with<std::logic_error>([&] { run(mistake); }, {of_what});
  };
  CHECK(told(Mistake::statistic, "statistics(shape)"));
  CHECK(told(Mistake::integer, "statistics(shape)"));
  CHECK(told(Mistake::reg, "registers(shape)"));
  CHECK(told(Mistake::int_reg, "registers(shape)"));
  CHECK(told(Mistake::set_int_reg, "registers(shape)"));
  CHECK(told(Mistake::slot, "a live slot"));
  CHECK(told(Mistake::element, "head_dim"));
}

/// Leaves the last task out, or runs it twice.
struct Miscounting {
  Index more = 0;
  int workers() const { return 2; }
  template <class F>
  void run(Index n, F&& f) const {
    for (Index task = 0; task < n + more; ++task) f(std::min(task, n - 1), 0);
  }
};

}  // namespace

TEST_CASE("an executor that leaves tasks out, or runs one twice, is told") {
  constexpr Index kHeads = 4, kDim = 8;
  const std::vector<float> rows(kHeads * kDim, 0.5f);
  std::vector<float> out(rows.size());
  const auto given = nhd_view(rows.data(), Index{1}, kHeads, kDim);
  for (const Index more : {0, -1, 1}) {
    KVCache<Full, float, float, Miscounting> cache(
        {.num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim}, {}, Miscounting{more});
    const auto extend = [&] {
      cache.extend(given, given, given, nhd_view(out.data(), Index{1}, kHeads, kDim));
    };
    if (more == 0) {
      CHECK_NOTHROW(extend());
    } else {
      CHECK(support::refused_with<std::logic_error>(
          extend, {"executor", "each of 4 tasks", std::to_string(kHeads + more) + " runs"}));
    }
  }
}
