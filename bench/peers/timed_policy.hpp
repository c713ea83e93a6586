// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <tersekv/tersekv.hpp>
#include <vector>

namespace tersekv::peers {

/// What the policies' parts of a step take on each thread, while someone asks; without what looking
/// at the clock takes, which is a good part of the shortest.
class PolicySeconds {
 public:
  /// Of the one of `threads` threads with the most, during f().
  template <class F>
  double of(int threads, F&& f) {
    const struct Stop {
      std::vector<Sum>& sums;
      ~Stop() { sums.clear(); }
    } stop{of_thread_};
    of_thread_.assign(static_cast<std::size_t>(threads), Sum{});
    f();
    double most = 0;
    for (const Sum& sum : of_thread_) {
      most = std::max(most, sum.seconds - static_cast<double>(sum.parts) * of_nothing());
    }
    return most;
  }
  template <class F>
  void time(F&& f) {
    if (of_thread_.empty()) return f();
    const double seconds = seconds_of(f);
    Sum& sum = of_thread_.at(thread());
    sum.seconds += seconds;
    ++sum.parts;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Sum {  // a cache line each
    double seconds = 0;
    int parts = 0;
  };
  template <class F>
  static double seconds_of(F&& f) {
    const auto begun = Clock::now();
    f();
    return std::chrono::duration<double>(Clock::now() - begun).count();
  }
  /// What an empty part seems to take: the median of many.
  static double of_nothing() {
    static const double seconds = [] {
      std::array<double, 1001> all{};
      for (double& each : all) each = seconds_of([] {});
      std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
      return all[all.size() / 2];
    }();
    return seconds;
  }
  static std::size_t thread() {
#if defined(_OPENMP)
    return static_cast<std::size_t>(omp_get_thread_num());
#else
    return 0;
#endif
  }
  std::vector<Sum> of_thread_;
};
inline PolicySeconds policy_seconds;

/// A policy whose part of a step can be timed within `extend`.
template <class PolicyType>
struct TimedPolicy : PolicyType {
  explicit TimedPolicy(const PolicyType& policy) : PolicyType(policy) {}

  template <class Team, class Head>
  void observe(Team& team, const Head& head, const Observation& row) const {
    policy_seconds.time([&] { PolicyType::observe(team, head, row); });
  }
  template <class Team, class Head>
  void compress(Team& team, const Head& head) const {
    policy_seconds.time([&] { PolicyType::compress(team, head); });
  }
};

}  // namespace tersekv::peers
