// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "tersekv/executor.hpp"

#if defined(_OPENMP)

using tersekv::Index;
using tersekv::OpenMPExecutor;

TEST_CASE("OpenMPExecutor runs every task once, no two at a time with the same worker") {
  for (const int workers : {1, 2, 3, 7, 70}) {
    const OpenMPExecutor executor(workers);
    REQUIRE(executor.workers() == workers);
    for (const Index n : {0, 1, 2, 3, 63, 64, 65, 200, 511, 512, 513, 1100}) {
      CAPTURE(workers, n);
      std::vector<std::atomic<int>> ran(static_cast<std::size_t>(n));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(workers));
      std::atomic<int> strangers = 0, clashes = 0;
      executor.run(n, [&](Index task, int worker) {
        if (worker < 0 || worker >= workers) {
          ++strangers;
          return;
        }
        std::atomic<int>& mine = busy[static_cast<std::size_t>(worker)];
        if (++mine != 1) ++clashes;
        ++ran[static_cast<std::size_t>(task)];
        --mine;
      });
      CHECK(strangers == 0);
      CHECK(clashes == 0);
      CHECK(std::all_of(ran.begin(), ran.end(), [](const auto& times) { return times == 1; }));
    }
  }
}

TEST_CASE("OpenMPExecutor's idle workers take what a busy one would have done") {
  const OpenMPExecutor executor(2);
  constexpr Index n = 10;
  std::atomic<Index> done = 0;
  std::atomic<int> given_up = 0;
  // The first task waits for all others: with every second one behind it, it would wait for ever.
  executor.run(n, [&](Index task, int) {
    if (task != 0) {
      ++done;
      return;
    }
    for (long waits = 0; done < n - 1; ++waits) {
      if (waits == 2'000'000'000 || omp_get_num_threads() == 1) {
        ++given_up;
        return;
      }
    }
  });
  if (omp_get_max_threads() > 1) CHECK(given_up == 0);
  CHECK(done == n - 1);
}

TEST_CASE("OpenMPExecutor's tasks may all wait for each other, also where they are more than 64") {
  constexpr int n = 70;
  std::atomic<int> here = 0, given_up = 0;
  OpenMPExecutor(n).run(n, [&](Index, int) {
    ++here;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (here < n && omp_get_num_threads() == n) {
      if (std::chrono::steady_clock::now() > end) {
        ++given_up;
        return;
      }
      std::this_thread::yield();
    }
  });
  CHECK(given_up == 0);
}

TEST_CASE("OpenMPExecutor says how many threads there are, of more than it can use") {
  CHECK(OpenMPExecutor(1'000'000).workers() == OpenMPExecutor::kMostThreads);
}

#endif
