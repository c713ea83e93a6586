// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lanes that run side by side and meet at barriers: `run_lanes(n, body)` calls body(lane) for each,
// `Barrier` is where they wait. Under the thread sanitizer, which is to see their races, they are
// threads. Else they are fibers of one thread: meetings take a hundredth of the time, and what
// comes first is always the same.

#if defined(__SANITIZE_THREAD__) || !defined(__linux__)

#include <barrier>
#include <thread>
#include <vector>

namespace host_cuda {

class Barrier {
 public:
  explicit Barrier(int lanes) : barrier_(lanes) {}
  void arrive_and_wait() { barrier_.arrive_and_wait(); }

 private:
  std::barrier<> barrier_;
};

template <class Body>
void run_lanes(int lanes, const Body& body) {
  std::vector<std::thread> threads;
  for (int lane = 0; lane < lanes; ++lane) threads.emplace_back([&, lane] { body(lane); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace host_cuda

#else

#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace host_cuda {

/// The fibers of one call of `run_lanes`: the one that runs, and the queue of those that may.
class Fibers {
 public:
  static Fibers& current() { return *running(); }

  Fibers(int lanes, std::function<void(int)> body)
      : body_(std::move(body)), fibers_(static_cast<std::size_t>(lanes)) {
    for (int lane = 0; lane < lanes; ++lane) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(lane)];
      fiber.stack = stack(lane);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack;
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &Fibers::enter, 0);
      ready_.push_back(lane);
    }
  }

  /// Until every lane has ended.
  void run() {
    running() = this;
    switch_to_next(caller_);
    running() = nullptr;
  }

  int lane() const { return lane_; }
  void wake(const std::vector<int>& lanes) {
    ready_.insert(ready_.end(), lanes.begin(), lanes.end());
  }
  /// Returns when another lane has woken this one.
  void sleep() { switch_to_next(fibers_[static_cast<std::size_t>(lane_)]); }

 private:
  static constexpr std::size_t kStackBytes = std::size_t{1} << 18;
  struct Fiber {
    ucontext_t context{};
    std::byte* stack = nullptr;  // null: the caller's own
    void* fake_stack = nullptr;
  };

  static Fibers*& running() {
    static thread_local Fibers* fibers = nullptr;
    return fibers;
  }
  /// Stacks are kept for the next call.
  static std::byte* stack(int lane) {
    static thread_local std::vector<std::unique_ptr<std::byte[]>> stacks;
    while (std::ssize(stacks) <= lane) {
      stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    }
    return stacks[static_cast<std::size_t>(lane)].get();
  }

  static void enter() {
    Fibers& fibers = current();
    fibers.arrived(nullptr);
    fibers.body_(fibers.lane_);
    ++fibers.ended_;
    fibers.leave();
  }

  Fiber& next() {
    if (ended_ == fibers_.size()) return caller_;
    if (ready_.empty()) {
      std::fputs("every lane waits at a barrier that another never comes to\n", stderr);
      std::abort();
    }
    lane_ = ready_.front();
    ready_.pop_front();
    return fibers_[static_cast<std::size_t>(lane_)];
  }
  void switch_to_next(Fiber& from) {
    Fiber& to = next();
    depart(to, &from.fake_stack);
    swapcontext(&from.context, &to.context);
    arrived(from.fake_stack);
  }
  [[noreturn]] void leave() {
    Fiber& to = next();
    depart(to, nullptr);
    setcontext(&to.context);
    std::abort();
  }

  // What the address sanitizer must be told: on which stack we are.
#if defined(__SANITIZE_ADDRESS__)
  void depart(const Fiber& to, void** fake_stack) {
    const bool own = to.stack != nullptr;
    __sanitizer_start_switch_fiber(fake_stack, own ? to.stack : caller_bottom_,
                                   own ? kStackBytes : caller_bytes_);
  }
  void arrived(void* fake_stack) {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
    if (caller_bottom_ == nullptr) caller_bottom_ = bottom, caller_bytes_ = bytes;
  }
  const void* caller_bottom_ = nullptr;  // the first switch is the one away from the caller
  std::size_t caller_bytes_ = 0;
#else
  void depart(const Fiber&, void**) {}
  void arrived(void*) {}
#endif

  std::function<void(int)> body_;
  std::vector<Fiber> fibers_;
  Fiber caller_;
  std::deque<int> ready_;
  std::size_t ended_ = 0;
  int lane_ = 0;
};

class Barrier {
 public:
  explicit Barrier(int lanes) : lanes_(static_cast<std::size_t>(lanes)) {}
  void arrive_and_wait() {
    Fibers& fibers = Fibers::current();
    if (waiting_.size() + 1 == lanes_) {
      fibers.wake(waiting_);
      waiting_.clear();
    } else {
      waiting_.push_back(fibers.lane());
      fibers.sleep();
    }
  }

 private:
  std::size_t lanes_;
  std::vector<int> waiting_;
};

template <class Body>
void run_lanes(int lanes, const Body& body) {
  Fibers(lanes, body).run();
}

}  // namespace host_cuda

#endif
