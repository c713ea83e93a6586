// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace llama {
namespace {

constexpr int kWidth = 40;
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)),
      total_(std::max<std::int64_t>(total, 1)),
      enabled_(isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (drawn_ != Clock::time_point{}) std::fputs("\r\033[K", stderr);
}

void Progress::advance(std::int64_t amount) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  done_ = std::min(done_ + amount, total_);
  const Clock::time_point now = Clock::now();
  if (now - start_ > kPatience && now - drawn_ > kInterval) draw(now);
}

void Progress::draw(Clock::time_point now) {
  drawn_ = now;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left = share > 0 ? elapsed / share - elapsed : 0;
  std::string bar(static_cast<std::size_t>(share * kWidth), '#');
  bar.resize(kWidth, '.');
  std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %%, %.0f s left", label_.c_str(), bar.c_str(),
               100 * share, left);
  std::fflush(stderr);
}

}  // namespace llama
