// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <tersekv/config.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace support {

/// Threads that take task after task. Counts the tasks of the latest call; 0 where it had none.
class Threads {
 public:
  using Index = tersekv::Index;
  explicit Threads(int count) : count_(count), tasks_(std::make_shared<Index>(0)) {}
  int workers() const { return count_; }
  template <class F>
  void run(Index n, F&& f) const {
    *tasks_ = n;
    std::atomic<Index> next{0};
    std::vector<std::thread> threads;
    for (int worker = 0; worker < count_; ++worker) {
      threads.emplace_back([&, worker] {
        for (Index task; (task = next.fetch_add(1)) < n;) f(task, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Index tasks() const { return std::exchange(*tasks_, 0); }

 private:
  int count_;
  std::shared_ptr<Index> tasks_;
};

}  // namespace support
