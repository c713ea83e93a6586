// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "axes.hpp"
#include "bandwidth.hpp"
#include "decode_step.hpp"
#include "tokens.hpp"

// What the benchmarks measure, and the check that it is right before it is timed.
namespace tersekv::bench {

/// The caches of several layers, all in the state after `tokens` tokens: chunks of 1024 appended,
/// their last 32 queries observed, compressed.
template <class PolicyType, Element T>
class Layers {
 public:
  using Cache = KVCache<PolicyType, T>;

  Layers(const Case& c, const PolicyType& policy, Index tokens)
      : case_(c), tokens_(tokens), master_(c.config(), policy) {
    Tokens chunk(c.heads, std::min<Index>(1024, tokens));
    for (Index first = 0; first < tokens; first += 1024) {
      const Index count = std::min<Index>(1024, tokens - first);
      chunk.draw(first, count);
      append_tokens(master_, chunk);
      if constexpr (PolicyType::observes != Observes::nothing) {
        const Index seen = std::min<Index>(32, count);
        master_.observe(0, chunk.q().rows(count - seen, seen));
      }
      master_.compress(0);
    }
    refresh();
  }

  /// Back to the state after construction.
  void refresh() {
    caches_.clear();
    caches_.reserve(static_cast<std::size_t>(case_.layers()));
    for (Index i = 0; i < case_.layers(); ++i) caches_.push_back(master_.clone());
    next_ = tokens_;
  }
  /// The same, for who evicts nothing, or little, and has grown by a sixteenth and 64 entries.
  void refresh_if_grown() {
    const Index start = master_.length(0, 0);
    if (caches_[0].length(0, 0) > start + std::max<Index>(64, start / 16)) refresh();
  }

  std::vector<Cache>& caches() { return caches_; }
  const Case& at() const { return case_; }
  Index next_position() { return next_++; }
  /// Bytes of K and V of one layer's live entries.
  Index layer_bytes() const {
    Index entries = 0;
    for (Index h = 0; h < case_.heads.kv; ++h) entries += master_.length(0, h);
    return entries * case_.entry_bytes() / case_.heads.kv;
  }
  Index footprint() const { return layer_bytes() * case_.layers(); }
  /// GB/s at which this machine reads that much, now.
  double bandwidth() const { return read_bandwidth(footprint()); }
  /// The newest token's attention in one layer against the plain double loop.
  bool right() {
    Tokens token(case_.heads);
    token.draw(next_, 1);
    std::vector<float> out(token.q_size());
    const TokenView<float> view = nhd_view(out.data(), 1, token.q().heads, case_.heads.dim);
    caches_.back().attend(0, token.q(), view);
    return attention_error(caches_.back(), token.q(), view) < kTolerance;
  }

 private:
  Case case_;
  Index tokens_, next_ = 0;
  Cache master_;
  std::vector<Cache> caches_;
};

/// Set when a check failed; the program then exits with status 1.
inline bool& any_wrong() {
  static bool wrong = false;
  return wrong;
}
inline void refuse(benchmark::State& state, const char* why) {
  any_wrong() = true;
  state.SkipWithError(why);
}

/// Holds what the last benchmark built, because Google Benchmark calls a function many times.
class Slot {
 public:
  template <class T, class Make>
  T& get(const std::string& name, Make&& make) {
    if (name != name_) {
      value_.reset();
      name_.clear();
      value_ = std::shared_ptr<T>(make());
      name_ = name;
    }
    return *static_cast<T*>(value_.get());
  }

 private:
  std::string name_;
  std::shared_ptr<void> value_;
};
inline Slot& subject_slot() {
  static Slot slot;
  return slot;
}
/// The full cache at the context of `c`: what every figure is compared with.
template <Element T>
Layers<Full, T>& full_at(const Case& c) {
  static Slot slot;
  return slot.get<Layers<Full, T>>(c.full().name(Codec<T>::name), [&] {
    return new Layers<Full, T>(c.full(), Full{}, c.context);
  });
}

/// The timed loop: `subject.round(samples)`, and every 10 ms as many rounds of Full as take the
/// same time, so that both meet the same machine. The first round after a change goes uncounted,
/// because the other one's data is in the caches. A round returns its seconds.
template <class Subject, class Baseline, class Into>
void take_turns(benchmark::State& state, Subject& subject, Baseline& baseline, Into& samples,
                Into& full_samples) {
  Into uncounted;
  subject.round(uncounted);
  double spent = 0, spent_on_full = 0;
  for (auto _ : state) {
    const double seconds = subject.round(samples);
    state.SetIterationTime(seconds);
    spent += seconds;
    if (spent_on_full > 0 && spent < spent_on_full + 0.01) continue;
    baseline.round(uncounted);
    while (spent_on_full < spent) spent_on_full += baseline.round(full_samples);
    subject.round(uncounted);
  }
}

/// The counters every benchmark has: `bytes` moved by one layer in `seconds`, as a rate and as a
/// fraction of `bandwidth`; and the time over that of Full, `full_seconds`.
inline void report(benchmark::State& state, double seconds, double bytes, double bandwidth,
                   double full_seconds) {
  const double rate = bytes * 1e-9 / seconds;
  state.counters["us_per_layer"] = seconds * 1e6;
  state.counters["GB/s"] = rate;
  state.counters["read_GB/s_at_this_size"] = bandwidth;
  state.counters["fraction_of_read_bandwidth"] = rate / bandwidth;
  state.counters["vs_full"] = seconds / full_seconds;
}

/// Registers `run(state)` under `name`, timed by hand.
inline void add(const std::string& name, std::function<void(benchmark::State&)> run) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(run))
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace tersekv::bench
