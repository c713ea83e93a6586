// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <memory_resource>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/executor.hpp"
#include "tersekv/first_exception.hpp"
#include "tersekv/task_plan.hpp"
#include "tersekv/workspace.hpp"

namespace tersekv::detail {

/// An executor, the scratch memory of its workers, and how heads are shared out among them.
template <class Executor>
class HeadRunner {
  static_assert(TaskExecutor<Executor>,
                "KVCache: the last template argument must satisfy tersekv::TaskExecutor: copyable, "
                "with `int workers() const` and `template <class F> void run(Index n, F&& f) "
                "const`, which calls f(task, worker)");

 public:
  /// `heads`: of a sequence.
  HeadRunner(Executor executor, Index heads, const WorkspaceForm& form,
             std::pmr::memory_resource* resource)
      : executor_(std::move(executor)),
        workers_(executor_.workers()),
        workspaces_(workers_, TaskPlan::most_split(heads, workers_), form, resource) {}

  const Executor& executor() const { return executor_; }
  Index workers() const { return workers_; }
  const Workspaces& workspaces() const { return workspaces_; }
  Workspaces& workspaces() { return workspaces_; }

  /// whole(head, spaces) for every head in [0, heads), by the caller alone where there is little to
  /// do: `work` is about the number of entries that are looked at.
  template <class Whole>
  void run(Index heads, Index work, Whole&& whole) {
    workspaces_.find();
    if (work <= kLittleWork) return run_alone(heads, whole);
    run_tasks(heads, [&](Index head, int worker) {
      const Spaces spaces = workspaces_.of(worker);
      whole(head, spaces);
    });
  }

  /// whole(head, spaces) again, but where the heads do not go round, those left over are shared:
  /// part(head, spaces, p, parts) for every p, by whatever workers, then rest(head, spaces) by the
  /// last of these. Before all this, one after the other and by the caller: most_parts(head,
  /// spaces, awake), how many parts are worth while, where other heads keep all workers `awake` or
  /// do not, and begin(head, spaces), of heads that are shared.
  template <class MostParts, class Begin, class Whole, class Part, class Rest>
  void run(Index heads, MostParts&& most_parts, Begin&& begin, Whole&& whole, Part&& part,
           Rest&& rest) {
    if (heads == 0) return;
    workspaces_.find();
    if constexpr (std::is_same_v<Executor, SerialExecutor>) {
      run_alone(heads, whole);  // one worker shares nothing
    } else {
      const Index left = heads % workers_;
      Index most = left > 0 ? workers_ : 1;
      const Spaces first = workspaces_.of(0);
      for (Index head = heads - left; head < heads; ++head) {
        most = std::min(most, most_parts(head, first, heads > left));
      }
      const TaskPlan plan = TaskPlan::of(heads, workers_, most);
      for (Index s = 0; s < plan.split; ++s) {
        workspaces_.shared_head(s).expect(plan.parts);
        begin(plan.whole + s, first);
      }
      run_tasks(plan.tasks(), [&](Index index, int worker) {
        const TaskPlan::Task task = plan.task(index, workers_);
        if (task.part == TaskPlan::Task::kAll) {
          const Spaces spaces = workspaces_.of(worker);
          return whole(task.head, spaces);
        }
        const Spaces spaces = workspaces_.of(worker, task.head - plan.whole);
        part(task.head, spaces, task.part, plan.parts);
        if (spaces.head.is_last()) rest(task.head, spaces);
      });
    }
  }

 private:
  /// What one thread does in the microsecond or two that it takes to wake another.
  static constexpr Index kLittleWork = 2048;

  /// A part of a policy that breaks its word throws; where threads run it, they go on.
  template <class F>
  void run_tasks(Index tasks, F&& f) {
    FirstException exception;
    [[maybe_unused]] std::atomic<Index> begun = 0;
    executor_.run(tasks, [&](Index task, int worker) {
      exception.catch_from([&] {
#if defined(TERSEKV_CHECKED)
        ++begun;  // threads that count together wait for each other
#endif
        require_index("the executor's worker", worker, workers_);
        f(task, worker);
      });
    });
    exception.rethrow();
#if defined(TERSEKV_CHECKED)
    if (begun == tasks) return;
    throw std::logic_error(text({"tersekv: the executor's run: expected to return when each of ",
                                 tasks, " tasks has run once, got ", begun.load(), " runs"}));
#endif
  }
  template <class Whole>
  void run_alone(Index heads, Whole&& whole) {
    const Spaces spaces = workspaces_.of(0);
    for (Index head = 0; head < heads; ++head) whole(head, spaces);
  }

  [[no_unique_address]] Executor executor_;
  Index workers_;
  Workspaces workspaces_;
};

}  // namespace tersekv::detail
