// SPDX-License-Identifier: Apache-2.0
#include "team.hpp"

namespace llama {
namespace {

// Pauses before a waiting thread lets others have its core: some hundred microseconds.
constexpr int kPatience = 10000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Team::Team(int threads) {
  try {
    for (int thread = 1; thread < threads; ++thread) {
      helpers_.emplace_back([this, thread] { help(thread); });
    }
  } catch (...) {  // no more threads to be had: those that are there go first
    dismiss();
    throw;
  }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
  if (helpers_.empty()) return;
  start(nullptr, nullptr);
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
}

Team& Team::of_one() {
  static Team team(1);
  return team;
}

void Team::start(Call call, void* context) {
  call_ = call;
  context_ = context;
  busy_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  piece_.fetch_add(1);
  piece_.notify_all();
}

void Team::finish() {
  for (int waited = 0; busy_.load(std::memory_order_acquire) > 0;) {
    // A helper that lost its core to others gets it back sooner.
    if (waited < kPatience) {
      ++waited;
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void Team::help(int thread) {
  for (std::uint32_t seen = 0;; ++seen) {
    for (int waited = 0; piece_.load(std::memory_order_acquire) == seen; ++waited) {
      if (waited < kPatience) {
        pause();
      } else {
        piece_.wait(seen);
      }
    }
    if (call_ == nullptr) return;
    call_(context_, thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace llama
