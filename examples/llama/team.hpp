// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace llama {

/// A few threads that work on one thing at a time. A token is some hundred short pieces of work,
/// one after the other, so threads that are done stay awake for a moment: handing them the next
/// piece takes a fraction of a microsecond, where waking them would take longer than the piece.
///
/// One caller at a time; what is called does not throw.
class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// For those who have no other: the calling thread. Any number of threads may use it at once.
  static Team& of_one();

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// f(thread) for every thread in [0, threads()), 0 being the caller; returns when all are done.
  template <class F>
  void run(F&& f) {
    if (helpers_.empty()) return static_cast<void>(f(0));
    start([](void* context,
             int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); },
          const_cast<void*>(static_cast<const void*>(&f)));
    f(0);
    finish();
  }

  /// f(first, last) for a range of [0, n) to each thread.
  template <class F>
  void split(std::int64_t n, F&& f) {
    run([&](int thread) {
      const std::int64_t first = n * thread / threads(), last = n * (thread + 1) / threads();
      if (first < last) f(first, last);
    });
  }

  /// f(task, thread) for every task in [0, n), each as soon as a thread is free.
  template <class F>
  void share(std::int64_t n, F&& f) {
    std::atomic<std::int64_t> next{0};
    run([&](int thread) {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
        f(task, thread);
      }
    });
  }

 private:
  using Call = void (*)(void* context, int thread);
  void start(Call call, void* context);
  void finish();
  void dismiss();  // lets the helpers go, and waits until they have
  void help(int thread);

  // A line for each counter: one is read over and over while the other is written.
  alignas(64) std::atomic<std::uint32_t> piece_{0};  // goes up with every piece of work
  alignas(64) std::atomic<int> busy_{0};             // helpers that are not done with it
  Call call_ = nullptr;                              // null: go home
  void* context_ = nullptr;
  std::vector<std::thread> helpers_;
};

}  // namespace llama
