// SPDX-License-Identifier: Apache-2.0

// What a decode step costs beyond attention, counted, not timed: accesses to statistics and passes
// over the keys, per live entry. Timings belong to the benchmarks.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bare_head.hpp"
#include "support/random.hpp"
#include "tersekv/policies/h2o.hpp"
#include "tersekv/policies/keepkv.hpp"
#include "tersekv/policies/morphkv.hpp"
#include "tersekv/policies/streaming_llm.hpp"
#include "tersekv/policies/tova.hpp"
#include "tersekv/policies/weightedkv.hpp"
#include "tersekv/policies/zsmerge.hpp"

using tersekv::Index;

namespace {

struct Cost {
  long statistics = 0;         // accesses; to write where one has just read is one of both
  long keys = 0;               // read in passes over all
  long products = 0;           // of a key with a vector
  long comparisons = 0;        // entries looked at by reductions
  long copies = 0;             // of entries, to other slots
  long requests = 0;           // for columns of a page that comes later
  Index slot = -1;             // of the latest access
  std::vector<Index> columns;  // of that slot, so far
};

/// A head that counts who asks for its statistics, and moves its entries.
class CountingHead : public tersekv::Head<float, float> {
 public:
  CountingHead(const Head& head, Cost& cost) : Head(head), cost_(cost) {}
  template <class Slot>
  decltype(auto) stat(Index column, Slot slot) const {
    count(column, slot);
    return Head::stat(column, slot);
  }
  template <class Slot>
  decltype(auto) int_stat(Index column, Slot slot) const {
    count(column, slot);
    return Head::int_stat(column, slot);
  }
  template <class Slot, class T>
  void set_stat(Index column, Slot slot, T x) const {
    const auto& columns = cost_.columns;
    const bool asked = std::find(columns.begin(), columns.end(), column) != columns.end();
    if (cost_.slot != Index{slot} || !asked) count(column, slot);
    Head::set_stat(column, slot, x);
  }
  void ask_for_columns(Index index) const {
    ++cost_.requests;
    Head::ask_for_columns(index);
  }
  void copy_entry(Index from, Index to) const {
    ++cost_.copies;
    Head::copy_entry(from, to);
  }
  void swap_entries(Index a, Index b) const {
    cost_.copies += 2;
    Head::swap_entries(a, b);
  }

 private:
  template <class Slot>
  void count(Index column, const Slot& slot) const {
    if (cost_.slot != Index{slot}) cost_.columns.clear();
    cost_.columns.push_back(column);
    cost_.slot = slot;
    if constexpr (requires { slot.live; }) {
      cost_.statistics += slot.live;
    } else {
      ++cost_.statistics;
    }
  }
  Cost& cost_;
};

class CountingTeam : public tersekv::SerialTeam {
 public:
  explicit CountingTeam(Cost& cost) : cost_(cost) {}
  template <class Head, class Eligible, class Key, class... Position>
  Index argmin(const Head& head, Index n, Eligible&& eligible, Key&& key,
               Position&&... position) const {
    cost_.comparisons += n;
    return SerialTeam::argmin(head, n, eligible, key, position...);
  }
  template <class Head, class Eligible, class Key, class... Position>
  Index argmax(const Head& head, Index n, Eligible&& eligible, Key&& key,
               Position&&... position) const {
    cost_.comparisons += n;
    return SerialTeam::argmax(head, n, eligible, key, position...);
  }
  template <class Head, class Eligible, class Least, class Key, class... Rough>
  Index argmin_bounded(const Head& head, Index n, Eligible&& eligible, Least&& least, Key&& key,
                       const Rough&... rough) const {
    cost_.comparisons += n;
    return SerialTeam::argmin_bounded(head, n, eligible, least, key, rough...);
  }
  template <class Head, class Eligible, class Key>
  void smallest(Index k, const Head& head, Index n, Eligible&& eligible, Key&& key,
                std::int32_t* out) const {
    cost_.comparisons += n;
    SerialTeam::smallest(k, head, n, eligible, key, out);
  }
  template <int MostRows = 1, class Head>
  void dot(const Head& head, const float* vectors, Index n, float* out, Index rows = 1,
           Index stride = 0) const {
    cost_.keys += n;
    cost_.products += n * rows;
    SerialTeam::dot<MostRows>(head, vectors, n, out, rows, stride);
  }

 private:
  Cost& cost_;
};

/// Average cost of a decode step at a full budget, per entry: a pass over the keys is 1.
struct PerStep {
  double accesses, passes, products, comparisons, copies;  // copies: in all, not per entry
};
template <class Policy>
PerStep decode(const Policy& policy, Index budget, Index steps) {
  const tersekv::Shape shape{2, 8, 0, 0.35f};
  support::BareHead<Policy> bare(policy, shape, budget, budget + 1);
  support::Random random(7);
  Cost cost, warm_up;
  for (Index token = 0; token <= budget + steps; ++token) {
    Cost& now = token <= budget ? warm_up : cost;  // the first compression finds all entries new
    const auto key = random.normals(8), value = random.normals(8), query = random.normals(16);
    const Index slot = bare.head().length();
    bare.push(key.data(), value.data());
    const CountingHead head(bare.head(), now);
    CountingTeam team(now);
    policy.append(team, head, slot, 1, nullptr);
    policy.observe(team, head, bare.attend(query.data(), head.length(), true));
    policy.compress(team, head);
    head.state().fresh = 0;
  }
  const double n = static_cast<double>(budget * steps);
  return {static_cast<double>(cost.statistics) / n, static_cast<double>(cost.keys) / n,
          static_cast<double>(cost.products) / n, static_cast<double>(cost.comparisons) / n,
          static_cast<double>(cost.copies) / static_cast<double>(steps)};
}

}  // namespace

TEST_CASE("A step of the attention-based policies touches each entry a fixed number of times") {
  const auto check = [](const std::string& name, const auto& policy, double accesses) {
    const PerStep small = decode(policy, 128, 256), large = decode(policy, 1024, 256);
    CAPTURE(name, small.accesses, large.accesses, small.comparisons, large.comparisons);
    CHECK(large.accesses <= accesses);
    CHECK(large.accesses <= 1.1 * small.accesses + 0.1);  // per entry: no growth with n
    CHECK(large.comparisons >= 1);
    CHECK(large.comparisons <= 2.1);
    CHECK(large.passes <= 0.015);  // no more than ZSMerge's residual slots, 1 % of the budget
  };
  check("StreamingLLM", tersekv::make_streaming_llm(), 0);
  check("H2O", tersekv::make_h2o(), 3);
  check("TOVA", tersekv::make_tova(), 3);
  check("ZSMerge", tersekv::make_zsmerge(), 4);
  check("WeightedKV", tersekv::make_weightedkv(), 3.5);  // one number an entry is written, not two
}

TEST_CASE("Fusing R rows costs MorphKV the same for every R, on average over R steps") {
  for (const auto fusion : {tersekv::Fusion::sum, tersekv::Fusion::max}) {
    for (const Index recent : {4, 32, 128}) {
      const auto policy = tersekv::make_morphkv({.recent = recent, .fusion = fusion});
      const PerStep step = decode(policy, 256, 512);
      CAPTURE(recent, step.accesses);
      CHECK(step.accesses <= 6.5);  // going over R rows at every step would be more than R
    }
  }
}

TEST_CASE("A step moves at most an entry into each hole, and shifts none") {
  const auto check = [](const std::string& name, const auto& policy) {
    for (const Index budget : {128, 1024}) {
      const double copies = decode(policy, budget, 256).copies;
      CAPTURE(name, budget, copies);
      CHECK(copies > 0);  // who leaves is not always the last
      CHECK(copies <= 2);
    }
  };
  check("StreamingLLM", tersekv::make_streaming_llm());
  check("H2O", tersekv::make_h2o());
  check("TOVA", tersekv::make_tova());
  check("MorphKV", tersekv::make_morphkv());
  check("ZSMerge", tersekv::make_zsmerge());
  check("WeightedKV", tersekv::make_weightedkv());
  check("KeepKV", tersekv::make_keepkv());
  check("KeepKV's pair", tersekv::make_keepkv_pair());
}

TEST_CASE("KeepKV's victim selector reads the keys once per step") {
  const PerStep step = decode(tersekv::make_keepkv(), 256, 512);
  CHECK(step.passes >= 1);
  CHECK(step.passes < 1.01);  // the head is one entry over its budget then
  CHECK(step.comparisons >= 2);
  CHECK(step.comparisons <= 2.1);
}

TEST_CASE("KeepKV's pair selector reads the keys little more than once per step") {
  for (const Index budget : {64, 256, 1024}) {
    const PerStep step = decode(tersekv::make_keepkv_pair(), budget, 256);
    CAPTURE(budget, step.passes, step.products);
    CHECK(step.passes >= 1);
    CHECK(step.passes <= 1.2);
    // The entry that has left the protected ones, the merged one, and some that look again.
    CHECK(step.products >= 2);
    CHECK(step.products <= 2.7);
  }
}

TEST_CASE("Columns are asked for once a step, by whoever comes to them first") {
  constexpr Index n = 2048;  // as many as attention reads from memory
  const auto requests = [](const auto& policy, bool observes) {
    support::BareHead<std::decay_t<decltype(policy)>> bare(policy, {1, 4, 0, 1.0f}, n - 1, n);
    const std::vector<float> zeros(4), shares(std::size_t{n}, 0.5f);
    for (Index i = 0; i < n; ++i) bare.push(zeros.data(), zeros.data());
    Cost cost;
    const CountingHead head(bare.head(), cost);
    CountingTeam team(cost);
    policy.append(team, head, 0, n, nullptr);
    tersekv::Observation row;
    row.visible = n;
    row.attention = shares.data();
    if (observes) policy.observe(team, head, row);
    const long before = cost.requests;
    policy.compress(team, head);
    CHECK(head.length() == n - 1);
    return std::pair{before, cost.requests - before};
  };
  const long pages = n / 64 - 4;  // the first ones come too soon
  CHECK(requests(tersekv::make_streaming_llm(), false) == std::pair{0l, pages});
  CHECK(requests(tersekv::make_h2o(), true) == std::pair{pages, 0l});
  CHECK(requests(tersekv::make_weightedkv(), true) == std::pair{pages, 0l});
}
