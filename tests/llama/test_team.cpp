// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "team.hpp"

TEST_CASE("every thread of a team gets its part of every piece of work") {
  for (const int threads : {0, 1, 2, 3, 8}) {
    llama::Team team(threads);
    const auto count = static_cast<std::size_t>(team.threads());
    CHECK(team.threads() == (threads > 0 ? threads : 1));
    std::vector<int> calls(count);
    for (int piece = 0; piece < 1000; ++piece) {
      team.run([&](int thread) { ++calls[static_cast<std::size_t>(thread)]; });
    }
    CHECK(calls == std::vector<int>(count, 1000));
  }
}

TEST_CASE("ranges and tasks cover what there is once") {
  for (const int threads : {1, 2, 3, 8}) {
    llama::Team team(threads);
    for (const std::int64_t n : {0, 1, 2, 7, 100}) {
      std::vector<int> by_range(static_cast<std::size_t>(n)), by_task(by_range);
      team.split(n, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) ++by_range[static_cast<std::size_t>(i)];
      });
      team.share(n, [&](std::int64_t task, int) { ++by_task[static_cast<std::size_t>(task)]; });
      CHECK(by_range == std::vector<int>(static_cast<std::size_t>(n), 1));
      CHECK(by_task == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  }
}

TEST_CASE("a team that fell asleep wakes up") {
  llama::Team team(3);
  int calls[3] = {};
  for (int piece = 0; piece < 3; ++piece) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    team.run([&](int thread) { ++calls[thread]; });
  }
  CHECK(std::accumulate(calls, calls + 3, 0) == 9);
}
