// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <vector>

#include "threads/candidates.hpp"

// The search that asks for few keys, on one thread and on several.

using support::Candidates;
using support::on_every_lane;
using support::Random;
using support::random_candidates;
using support::Slots;
using tersekv::Index;
using tersekv::SerialTeam;

TEST_CASE("argmin by lower bounds names what argmin names, and asks for few keys") {
  Random random(5);
  INFO(random);
  for (Index n : {0, 1, 33, 700, 2500}) {
    for (double share : {0.0, 0.5, 1.0}) {
      Candidates c = random_candidates(random, n, share);
      if (n == 2500) {
        for (float& key : c.keys) key += static_cast<float>(random.normal(3));
      }
      std::vector<float> below;
      for (Index i = 0; i < n; ++i) below.push_back(static_cast<float>(random.uniform(0, 1)));
      for (double slack : {0.0, 1.0, 1e6}) {
        const auto least = [&](Index i) {
          const auto at = static_cast<std::size_t>(i);
          return c.keys[at] - static_cast<float>(slack) * below[at];
        };
        const Slots up = c.in_order();
        INFO("n " << n << ", eligible " << up.size() << ", slack " << slack);
        for (Index got : on_every_lane([&](auto& team) {
               return team.argmin_bounded(c, n, c.is_eligible(), least, c.key());
             })) {
          CHECK(got == (up.empty() ? -1 : up.front()));
        }
        const Index in_vectors =
            SerialTeam().argmin_bounded(c, n, c.vector_eligible(), c.vector_key(), c.key());
        CHECK(in_vectors == (up.empty() ? -1 : up.front()));
        for (float rougher : {0.0f, 0.5f, 10.0f}) {
          Index asked = 0;
          const auto counted = [&](Index i) { return ++asked, c.key()(i); };
          CHECK(in_vectors == SerialTeam().argmin_bounded(c, n, c.vector_eligible(), c.vector_key(),
                                                          counted, c.vector_key(rougher)));
          if (n == 2500) CHECK(asked < n / 20);
        }
        Index asked = 0;
        const auto counted = [&](Index i) { return ++asked, c.key()(i); };
        SerialTeam().argmin_bounded(c, n, c.is_eligible(), least, counted);
        if (up.empty()) continue;
        CHECK(asked <= n + 1);
        if (n == 2500 && slack <= 1) CHECK(asked < n / 20);
      }
    }
  }
}

TEST_CASE("argmin by lower bounds takes keys as far as floats go") {
  constexpr float most = std::numeric_limits<float>::max();
  Candidates c;
  c.keys = {0, most, -most, most, -most, 1};
  c.positions = {0, 5, 4, 1, 3, 2};
  const auto lowest_of = [&](const std::vector<bool>& eligible) {
    c.eligible = eligible;
    const auto found = on_every_lane(
        [&](auto& team) { return team.argmin_bounded(c, 6, c.is_eligible(), c.key(), c.key()); });
    for (Index got : found) CHECK(got == found.front());
    return found.front();
  };
  CHECK(lowest_of({true, true, true, true, true, true}) == 4);
  CHECK(lowest_of({false, true, false, true, false, false}) == 3);
  CHECK(lowest_of({true, true, false, true, false, false}) == 0);
}
