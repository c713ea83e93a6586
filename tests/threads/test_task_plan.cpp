// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <tersekv/attention_request.hpp>
#include <tersekv/task_plan.hpp>
#include <vector>

// How heads are shared out among workers.

using namespace tersekv;
using detail::TaskPlan;

namespace {

/// Rounds of a head's work that a plan takes, times `parts` to be whole.
Index time_of(Index heads, Index workers, Index parts) {
  const Index left = heads % workers;
  return heads / workers * parts + (left * parts + workers - 1) / workers;
}

TEST_CASE("task plan: takes the least time that so many parts allow, in few parts") {
  for (Index workers = 1; workers <= 17; ++workers) {
    for (Index heads = 0; heads <= 40; ++heads) {
      for (Index most = 1; most <= workers; ++most) {
        CAPTURE(workers, heads, most);
        const TaskPlan plan = TaskPlan::of(heads, workers, most);
        REQUIRE(plan.whole + plan.split == heads);
        REQUIRE(plan.tasks() == plan.whole + plan.split * plan.parts);
        REQUIRE(plan.split == (plan.parts > 1 ? heads % workers : 0));
        REQUIRE(plan.split <= TaskPlan::most_split(heads, workers));
        const Index time = time_of(heads, workers, plan.parts);
        for (Index parts = 1; parts <= std::max<Index>(most, 1); ++parts) {
          const Index other = time_of(heads, workers, parts);
          REQUIRE(time * parts <= other * plan.parts);
          if (parts < plan.parts) REQUIRE(time * parts < other * plan.parts);
        }
      }
      CHECK(TaskPlan::of(heads, workers, workers).tasks() % workers == 0);  // equally busy
    }
  }
  for (Index sequences = 1; sequences <= 9; ++sequences) {
    CHECK(TaskPlan::of(6 * sequences, 4, 4).split <= TaskPlan::most_split(6, 4));
  }
}

TEST_CASE("task plan: each head once, whole or in all its parts") {
  for (Index workers = 1; workers <= 9; ++workers) {
    for (Index heads = 0; heads <= 20; ++heads) {
      for (Index most = 1; most <= workers; ++most) {
        CAPTURE(workers, heads, most);
        const TaskPlan plan = TaskPlan::of(heads, workers, most);
        std::vector<std::vector<Index>> parts(static_cast<std::size_t>(heads));
        for (Index t = 0; t < plan.tasks(); ++t) {
          const TaskPlan::Task task = plan.task(t, workers);
          REQUIRE((0 <= task.head && task.head < heads));
          parts[static_cast<std::size_t>(task.head)].push_back(task.part);
        }
        for (Index h = 0; h < heads; ++h) {
          const std::vector<Index>& of_head = parts[static_cast<std::size_t>(h)];
          std::vector<Index> expected{TaskPlan::Task::kAll};
          if (h >= plan.whole) {
            expected.clear();
            for (Index p = 0; p < plan.parts; ++p) expected.push_back(p);
          }
          REQUIRE(of_head == expected);  // in this order
        }
      }
    }
  }
}

TEST_CASE("task plan: last parts come last, and whole heads to whom they come in other calls") {
  for (Index workers = 1; workers <= 9; ++workers) {
    for (Index heads = 0; heads <= 20; ++heads) {
      CAPTURE(workers, heads);
      const TaskPlan plan = TaskPlan::of(heads, workers, workers);
      for (Index t = 0; t < plan.tasks(); ++t) {
        const TaskPlan::Task task = plan.task(t, workers);
        const bool last = t >= plan.tasks() - plan.split;
        if (plan.split > 0) REQUIRE((task.part == plan.parts - 1) == last);
        if (task.part == TaskPlan::Task::kAll) REQUIRE(task.head % workers == t % workers);
      }
    }
  }
}

TEST_CASE("task plan: nobody but who has the last part comes to the last entry") {
  using namespace detail;
  for (Index entries = 2; entries <= 20 * kSection + 1; ++entries) {
    for (const bool of_one_section : {false, true}) {
      for (Index parts = 2; parts <= most_parts_of(entries, of_one_section); ++parts) {
        CAPTURE(entries, parts);
        for (Index p = 0; p < parts; ++p) {
          REQUIRE(first_section_of(p, parts, entries) < first_section_of(p + 1, parts, entries));
        }
        REQUIRE(first_section_of(parts, parts, entries) == sections_of(entries));
        // Values of other parts are read in whole vectors, into the entries that follow.
        REQUIRE(first_section_of(parts - 1, parts, entries) * kSection <= entries - kSection);
      }
    }
  }
}

}  // namespace
