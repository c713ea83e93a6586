// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace llama {

/// A bar on the terminal for work that takes longer than a moment. Nothing is shown where output is
/// redirected. Any number of threads may advance it.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();  ///< takes the bar away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t amount);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  const std::string label_;
  const std::int64_t total_;
  const bool enabled_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::int64_t done_ = 0;
  Clock::time_point drawn_{};  // never, until the first time
};

}  // namespace llama
