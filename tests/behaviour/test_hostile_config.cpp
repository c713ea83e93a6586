// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <limits>
#include <tersekv/tersekv.hpp>

#include "refusal.hpp"

// Shapes, budgets and parameters that make no sense are refused, with what, expected and got.

namespace {

using namespace tersekv;
using support::kInfinity;
using support::kNaN;
using support::refused;

constexpr Index kHuge = kUnlimited;
constexpr Index kLowest = std::numeric_limits<Index>::min();

CacheConfig good() {
  return {.num_sequences = 1, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 8, .budget = 24};
}

template <class Change>
auto making(Change&& change) {
  return [change] {
    CacheConfig config = good();
    change(config);
    KVCache<H2O> cache(config, make_h2o());
  };
}

TEST_CASE("hostile: shapes that make no sense are refused") {
  using C = CacheConfig;
  CHECK_NOTHROW(making([](C&) {})());
  for (const Index n : {Index{0}, Index{-1}, kLowest, Index{1} << 31, kHuge}) {
    const std::string got = std::to_string(n);
    CHECK(refused(making([n](C& c) { c.num_sequences = n; }), {"num_sequences", got}));
    CHECK(refused(making([n](C& c) { c.num_q_heads = n; }), {"num_q_heads", got}));
    CHECK(refused(making([n](C& c) { c.num_kv_heads = n; }), {"num_kv_heads", got}));
    CHECK(refused(making([n](C& c) { c.head_dim = n; }), {"head_dim", got}));
  }
  CHECK(refused(making([](C& c) { c.num_q_heads = 7; }), {"num_q_heads", "multiple", "7"}));
  CHECK(refused(making([](C& c) { c.num_q_heads = 1; }), {"num_q_heads", "multiple", "got 1"}));
  CHECK(refused(making([](C& c) { c.layer = -1; }), {"layer", "-1"}));
  CHECK(refused(making([](C& c) { c.scale = -1; }), {"scale", "-1"}));
  CHECK(refused(making([](C& c) { c.scale = kNaN; }), {"scale", "NaN"}));
  CHECK(refused(making([](C& c) { c.scale = kInfinity; }), {"scale", "inf"}));
  for (const Index n : {Index{0}, Index{-16}, Index{1}, Index{8}, Index{17}, Index{48}, Index{8192},
                        kHuge, kLowest}) {
    CHECK(refused(making([n](C& c) { c.page_size = n; }), {"page_size", std::to_string(n)}));
  }
}

TEST_CASE("hostile: more heads than memory is an exception, not a crash") {
  using C = CacheConfig;
  CHECK(refused(making([](C& c) { c.num_sequences = (Index{1} << 30) + 1; }),
                {"num_sequences", "num_kv_heads", "1073741825"}));
  for (const Index n : {Index{1} << 50, Index{1} << 60, Index{1} << 62, kHuge}) {
    for (const Index heads : {1, 4, 6}) {  // 4 * 2^62 would be 0 in 64 bits
      CHECK_THROWS(making([n, heads](C& c) {
        c.num_sequences = n;
        c.num_kv_heads = c.num_q_heads = heads;
      })());
    }
  }
}

TEST_CASE("hostile: budgets that make no sense are refused") {
  using C = CacheConfig;
  for (const Index n : {Index{0}, Index{-1}, Index{-1000}, kLowest}) {
    CHECK(refused(making([n](C& c) { c.budget = n; }), {"budget", std::to_string(n)}));
    CHECK(refused(making([n](C& c) { c.budget = {24, n}; }), {"budget", std::to_string(n)}));
  }
  CHECK(refused(making([](C& c) { c.budget = Budget(); }), {"budget", "none"}));
  CHECK(refused(making([](C& c) { c.budget = {1, 2, 3}; }), {"budget", "per KV head", "3"}));
  CHECK_NOTHROW(making([](C& c) { c.budget = kUnlimited; })());
  CHECK_NOTHROW(making([](C& c) { c.budget = {1, kUnlimited}; })());
}

/// Parameters are judged by `validate`; no cache need be made for it.
template <class PolicyType>
auto judging(const PolicyType& policy, Index budget = 24) {
  return [policy, budget] {
    policy.validate(Shape{.group_size = 3, .head_dim = 8, .layer = 0, .scale = 0.5f}, budget);
  };
}

TEST_CASE("hostile: every method has a smallest budget, and all below are refused") {
  const auto smallest = [](const auto& policy, Index budget, const char* why = "room for ") {
    CAPTURE(budget);
    CHECK_NOTHROW(judging(policy, budget)());
    CHECK_NOTHROW(judging(policy, kUnlimited)());
    for (const Index n : {budget - 1, Index{0}, Index{-1}, Index{-7}, kLowest}) {
      const char* expected = n < 1 ? "at least " : why;
      CHECK(refused(judging(policy, n), {"budget", expected, "got " + std::to_string(n)}));
    }
  };
  smallest(make_streaming_llm(), 5);
  smallest(make_streaming_llm({.sinks = 0}), 1);
  smallest(make_h2o(), 1);
  smallest(make_h2o({.recent = 7}), 7);
  smallest(make_tova(), 1);
  smallest(make_snapkv({.window = 9}), 9);
  smallest(make_zsmerge({.proximity = 1, .residual = 0}), 1);
  smallest(make_zsmerge({.proximity = 5, .residual = 3}), 8);
  smallest(make_weightedkv(), 6, "at least 6");
  smallest(make_morphkv(), 32);
  smallest(make_keepkv({.recent = 3}), 8);
  smallest(make_keepkv_pair({.recent = 3}), 8);
  for (const Index budget : {Index{0}, Index{-1}, kLowest}) {  // no budget, nothing to refuse
    CHECK_NOTHROW(judging(make_kvzap(), budget)());
    CHECK_NOTHROW(judging(Full{}, budget)());
    CHECK_NOTHROW(judging(make_morphkv({.uncompressed_layers = 1}), budget)());
  }
}

TEST_CASE("hostile: parameters out of range are refused") {
  for (const Index n : {Index{-2}, Index{-1000}, kLowest}) {
    const std::string got = "got " + std::to_string(n);
    CHECK(refused(judging(make_streaming_llm({.sinks = n})), {"sinks", got}));
    CHECK(refused(judging(make_h2o({.recent = n})), {"recent", got}));
    CHECK(refused(judging(make_zsmerge({.proximity = n})), {got}));
    CHECK(refused(judging(make_zsmerge({.residual = n})), {"residual", got}));
    CHECK(refused(judging(make_weightedkv({.sinks = n})), {"sinks", got}));
    CHECK(refused(judging(make_weightedkv({.recent = n})), {"recent", got}));
    CHECK(refused(judging(make_keepkv({.recent = n})), {"recent", got}));
    CHECK(refused(judging(make_keepkv({.sinks = n})), {"sinks", got}));
    CHECK(refused(judging(make_keepkv_pair({.recent = n})), {"recent", got}));
    CHECK(refused(judging(make_keepkv_pair({.sinks = n})), {"sinks", got}));
    CHECK(refused(judging(make_kvzap({.window = n})), {got}));
    CHECK(refused(judging(make_morphkv({.uncompressed_layers = n})), {"uncompressed_layers", got}));
  }
  for (const Index n : {Index{0}, Index{-1}, Index{-5}, kLowest}) {
    const std::string got = "got " + std::to_string(n);
    CHECK(refused(judging(make_snapkv({.window = n})), {"window", got}));
    CHECK(refused(judging(make_snapkv({.window = 5, .kernel = n})), {"kernel", got}));
    CHECK(refused(judging(make_zsmerge({.window = n})), {"window", got}));
    CHECK(refused(judging(make_keepkv({.window = n})), {"window", got}));
    CHECK(refused(judging(make_morphkv({.recent = n})), {got}));
    CHECK(refused(judging(make_morphkv({.recent = 4, .interval = n})), {"interval", got}));
  }
  CHECK(refused(judging(make_kvzap({.window = -1})), {"-1"}));
  CHECK(refused(judging(make_zsmerge({.proximity = 0})), {"proximity", "got 0"}));
  CHECK(refused(judging(make_snapkv({.window = 5, .kernel = 4})), {"kernel", "odd", "4"}));
  for (const float x : {-0.01f, 1.01f, kInfinity, -kInfinity, kNaN}) {
    CHECK(refused(judging(make_zsmerge({.decay = x})), {"decay"}));
    CHECK(refused(judging(make_zsmerge({.alpha = x})), {"alpha"}));
    CHECK(refused(judging(make_keepkv({.decay = x})), {"decay"}));
  }
  for (const float x : {0.99991f, 9e-7f}) {
    CHECK(refused(judging(make_keepkv({.decay = x})), {"decay"}));
  }
  CHECK_NOTHROW(judging(make_keepkv({.decay = 0.9999f}))());
  for (const float x : {0.0f, 1.0f}) {
    CHECK(refused(judging(make_keepkv({.decay = x})), {"decay"}));
    CHECK_NOTHROW(judging(make_zsmerge({.decay = x, .alpha = x}))());
  }
  for (const float x : {kInfinity, -kInfinity, kNaN}) {
    CHECK(refused(judging(make_kvzap({.threshold = x})), {"threshold"}));
  }
}

TEST_CASE("hostile: more protected entries than any budget holds are refused, not overflowed") {
  for (const Index n : {kHuge, kHuge - 1, kHuge / 2 + 1}) {
    CHECK(refused(judging(make_streaming_llm({.sinks = n})), {}));
    CHECK(refused(judging(make_h2o({.recent = n})), {}));
    CHECK(refused(judging(make_zsmerge({.proximity = n})), {}));
    CHECK(refused(judging(make_zsmerge({.residual = n})), {}));
    CHECK(refused(judging(make_zsmerge({.proximity = n, .residual = n})), {}));
    CHECK(refused(judging(make_weightedkv({.sinks = n})), {}));
    CHECK(refused(judging(make_weightedkv({.sinks = n, .recent = n})), {}));
    CHECK(refused(judging(make_keepkv({.recent = n, .sinks = n})), {}));
    CHECK(refused(judging(make_keepkv_pair({.recent = n, .sinks = n})), {}));
    CHECK(refused(judging(make_snapkv({.window = n})), {}));
    CHECK(refused(judging(make_morphkv({.recent = n})), {}));
  }
}

TEST_CASE("hostile: surrogates without weights or with layers that do not fit are refused") {
  const float x[12] = {};
  const LinearView good_layer{x, x, 2, 3};
  CHECK_NOTHROW(Surrogate(good_layer));
  CHECK_THROWS_AS(Surrogate(LinearView{}), std::invalid_argument);
  CHECK_THROWS_AS(Surrogate(LinearView{x, nullptr, 2, 3}), std::invalid_argument);
  CHECK_THROWS_AS(Surrogate(LinearView{x, x, 0, 3}), std::invalid_argument);
  CHECK_THROWS_AS(Surrogate(LinearView{x, x, 2, -3}), std::invalid_argument);
  CHECK(refused(
      [&] {
        Surrogate(good_layer, LinearView{x, x, 2, 3});
      },
      {"second layer", "expected 2", "got 3"}));
}

}  // namespace
