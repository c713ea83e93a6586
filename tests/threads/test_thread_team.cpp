// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bare_head.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"
#include "threads/thread_team.hpp"

// Every part of every policy, run by several real threads on one head, must leave the bits that one
// thread leaves. The thread sanitizer runs these tests too, and finds what breaks a team's rules.

using support::BareHead;
using support::Random;
using support::ThreadTeam;
using tersekv::Index;
using tersekv::KeyRule;
using tersekv::SerialTeam;

namespace {

constexpr Index kGroup = 2, kDim = 6, kPage = 16;
constexpr std::uint64_t kTraces = support::kThreadSanitizer ? 1 : 3;

/// A prompt beyond the budget, then single tokens and small chunks.
struct Trace {
  explicit Trace(std::uint64_t seed) {
    Random random(seed);
    chunks = {random.integer(18, 30)};
    for (int i = 0; i < 12; ++i) chunks.push_back(random.chance(0.7) ? 1 : random.integer(2, 7));
    for (Index chunk : chunks) tokens += chunk;
    queries = random.normals(tokens * kGroup * kDim, 1.5);
    keys = random.normals(tokens * kDim);
    values = random.normals(tokens * kDim);
    scores = random.normals(tokens);
    // Equal keys and queries that see no difference: choices by position, not by score.
    for (Index t = 1; t < tokens && support::kSameRounding; ++t) {
      if (random.chance(0.3)) {
        std::copy_n(keys.data() + random.integer(0, t - 1) * kDim, kDim, keys.data() + t * kDim);
      }
      if (random.chance(0.1)) std::fill_n(queries.data() + t * kGroup * kDim, kGroup * kDim, 0.0f);
    }
  }

  Index tokens = 0;
  std::vector<Index> chunks;
  std::vector<float> queries, keys, values, scores;
};

/// What a cache does with one head, for any team. All lanes call it.
template <class PolicyType, class Team>
void replay(const PolicyType& policy, BareHead<PolicyType>& bare, const Trace& trace, Team& team) {
  const auto head = bare.head();
  Index at = 0;
  for (Index chunk : trace.chunks) {
    const Index first = head.length();
    team.once([&] {
      for (Index t = at; t < at + chunk; ++t) {
        bare.push(trace.keys.data() + t * kDim, trace.values.data() + t * kDim);
      }
    });
    policy.append(team, head, first, chunk, trace.scores.data() + at);
    Index rows = std::min(chunk, policy.observed_rows(head.state().fresh));
    if (PolicyType::observes == tersekv::Observes::nothing) rows = 0;
    for (Index r = chunk - rows; r < chunk; ++r) {
      team.once([&] {
        bare.attend(trace.queries.data() + (at + r) * kGroup * kDim, first + r + 1,
                    r == chunk - rows);
      });
      policy.observe(team, head, bare.row());
    }
    policy.compress(team, head);
    team.once([&] { head.state().fresh = 0; });
    at += chunk;
  }
}

template <class PolicyType>
void check_same(BareHead<PolicyType>& got, BareHead<PolicyType>& want) {
  if (support::kSameRounding) CHECK((got.bits() == want.bits()));
  REQUIRE(got.positions() == want.positions());
  for (Index position : want.positions()) {
    const Index a = got.slot_at(position), b = want.slot_at(position);
    CHECK(support::close(got.head().weight(a), want.head().weight(b), 1e-5, 0));
    for (Index j = 0; j < kDim; ++j) {
      CHECK(support::close(got.head().key(a, j), want.head().key(b, j), 1e-3, 1e-3));
      CHECK(support::close(got.head().value(a, j), want.head().value(b, j), 1e-3, 1e-3));
    }
  }
}

/// `changed`: whether the policy is expected to evict or merge.
template <class PolicyType>
void same_on_any_number_of_threads(const PolicyType& policy, Index budget, bool changed = true) {
  const tersekv::Shape shape{
      .group_size = kGroup, .head_dim = kDim, .scale = 1.0f / std::sqrt(static_cast<float>(kDim))};
  policy.validate(shape, budget);
  for (std::uint64_t seed = 1; seed <= kTraces; ++seed) {
    INFO("seed " << seed);
    const Trace trace(seed);
    BareHead<PolicyType> serial(policy, shape, budget, trace.tokens, kPage);
    SerialTeam one;
    replay(policy, serial, trace, one);
    const tersekv::Counts counts = serial.head().state().counts;
    CHECK((counts.evictions + counts.merges > 0) == changed);
    CHECK(serial.head().tokens_seen() == trace.tokens);
    for (Index lanes = 2; lanes <= 4; ++lanes) {
      INFO(lanes << " lanes");
      BareHead<PolicyType> threaded(policy, shape, budget, trace.tokens, kPage);
      ThreadTeam::run(lanes,
                      [&](ThreadTeam& team, Index) { replay(policy, threaded, trace, team); });
      check_same(threaded, serial);
    }
  }
}

}  // namespace

TEST_CASE("Full and StreamingLLM do the same on several threads") {
  same_on_any_number_of_threads(tersekv::Full{}, tersekv::kUnlimited, false);
  same_on_any_number_of_threads(tersekv::make_streaming_llm(), 11);
}

TEST_CASE("H2O and TOVA do the same on several threads") {
  same_on_any_number_of_threads(tersekv::make_h2o(), 11);
  same_on_any_number_of_threads(tersekv::make_tova(), 5);
}

TEST_CASE("SnapKV does the same on several threads") {
  same_on_any_number_of_threads(tersekv::make_snapkv({.window = 4, .kernel = 5}), 12);
}

TEST_CASE("ZSMerge does the same on several threads") {
  same_on_any_number_of_threads(tersekv::make_zsmerge(), 12);
  same_on_any_number_of_threads(tersekv::make_zsmerge({.residual = 3, .alpha = 0.5f}), 12);
  same_on_any_number_of_threads(tersekv::make_zsmerge({.residual = 0}), 12);
}

TEST_CASE("WeightedKV does the same on several threads") {
  same_on_any_number_of_threads(tersekv::make_weightedkv(), 12);
}

TEST_CASE("MorphKV does the same on several threads") {
  same_on_any_number_of_threads(tersekv::make_morphkv({.recent = 5}), 12);
  same_on_any_number_of_threads(
      tersekv::make_morphkv({.recent = 5, .fusion = tersekv::Fusion::max}), 12);
  same_on_any_number_of_threads(tersekv::make_morphkv({.recent = 5, .interval = 3}), 12);
}

TEST_CASE("KeepKV does the same on several threads under every key rule") {
  for (KeyRule rule : {KeyRule::mean, KeyRule::scale, KeyRule::along_query}) {
    INFO("key rule " << static_cast<int>(rule));
    same_on_any_number_of_threads(tersekv::make_keepkv({.key_rule = rule}), 12);
  }
}

TEST_CASE("KeepKV by pairs does the same on several threads under every key rule") {
  for (KeyRule rule : {KeyRule::mean, KeyRule::scale, KeyRule::along_query}) {
    INFO("key rule " << static_cast<int>(rule));
    same_on_any_number_of_threads(tersekv::make_keepkv_pair({.key_rule = rule}), 12);
  }
}

TEST_CASE("KVzap does the same on several threads") {
  same_on_any_number_of_threads(tersekv::make_kvzap({.threshold = 0.3f, .window = 4}),
                                tersekv::kUnlimited);
}

TEST_CASE("combinations of parts do the same on several threads") {
  using namespace tersekv;
  FusedWindowAttention fused;
  fused.window = 4;
  LowestScore lowest;
  lowest.protection.recent = 4;
  same_on_any_number_of_threads(
      Policy<FusedWindowAttention, LowestScore, ResidualSlots>(fused, lowest), 12);
  same_on_any_number_of_threads(
      Policy<CumulativeAttention, LowestScore, RightNeighbour>(CumulativeAttention{}, lowest), 12);
  same_on_any_number_of_threads(
      Policy<TokenScore, LowestScore, ResidualSlots>(TokenScore{}, lowest), 12);
  BelowThreshold below;
  below.threshold = 0.3f;
  below.protection.recent = 3;
  same_on_any_number_of_threads(Policy<TokenScore, BelowThreshold, RightNeighbour>({}, below),
                                kUnlimited);
  // A threshold gives the merger several victims at once, which zip-merges them one by one.
  below.threshold = -3.0f;
  same_on_any_number_of_threads(Policy<PredictedMass, BelowThreshold, ZipMerge>({}, below),
                                kUnlimited);
}
