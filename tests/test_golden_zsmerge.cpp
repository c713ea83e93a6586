// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "golden_trace.hpp"
#include "tersekv/policies/zsmerge.hpp"

using support::close;
using support::close_all;
using support::GoldenCase;
using support::same_indices;
using tersekv::Index;

namespace {

using Trace = support::GoldenTrace<tersekv::ZSMerge>;

/// Raw tokens and residual slots of a head. Slots [0, pinned) are the residual ones, in the order
/// in which they were opened.
struct Live {
  std::vector<Index> positions;
  std::vector<float> scores;
  std::vector<float> slot_weights;
};

Live live(Trace& trace, Index h) {
  const auto head = trace.cache().head(0, h);
  Live result;
  std::vector<Index> slots;
  for (Index r = 0; r < head.state().pinned; ++r) {
    slots.push_back(head.position(r));
    result.slot_weights.push_back(head.weight(r));
  }
  for (const tersekv::Entry& entry : trace.cache().entries(0, h)) {
    if (std::find(slots.begin(), slots.end(), entry.position) != slots.end()) continue;
    CHECK(entry.weight == 1.0f);
    result.positions.push_back(entry.position);
    result.scores.push_back(entry.score);
  }
  return result;
}

void check_state(const GoldenCase& golden, Trace& trace, Index row, Index h) {
  const auto [relative, absolute] = golden.tolerance();
  const Live now = live(trace, h);
  CHECK(same_indices(now.positions, support::unpadded(golden.integers("live_positions"), row, h)));
  auto scores = golden.floats("live_scores").vector(row, h);
  scores.resize(now.positions.size());
  CHECK(close_all(now.scores, scores, relative, absolute));

  const auto head = trace.cache().head(0, h);
  REQUIRE(head.state().pinned == golden.integers("residual_count")(row, h));
  Index weights = static_cast<Index>(now.positions.size());
  for (Index s = 0; s < head.state().pinned; ++s) {
    std::vector<float> key, value;
    for (Index j = 0; j < head.head_dim(); ++j) key.push_back(head.key(s, j));
    for (Index j = 0; j < head.head_dim(); ++j) value.push_back(head.value(s, j));
    const Index weight = golden.integers("residual_weights")(row, h, s);
    CHECK(head.weight(s) == static_cast<float>(weight));
    CHECK(close_all(key, golden.floats("residual_keys").vector(row, h, s), relative, absolute));
    CHECK(close_all(value, golden.floats("residual_values").vector(row, h, s), relative, absolute));
    weights += weight;
  }
  if (golden.setting<Index>("residual") > 0) CHECK(weights == head.tokens_seen());
  CHECK(head.length() <= golden.setting<Index>("budget"));
}

/// The token that is raw no longer, and the slot that has grown; -1 for none.
void check_choice(const GoldenCase& golden, const Live& before, const Live& after, Index row,
                  Index h) {
  Index victim = -1, target = -1;
  std::vector<Index> candidates = before.positions;
  candidates.push_back(golden.setting<Index>("prompt_length") + row - 1);
  for (Index position : candidates) {
    if (std::count(after.positions.begin(), after.positions.end(), position) == 0)
      victim = position;
  }
  for (std::size_t s = 0; s < before.slot_weights.size(); ++s) {
    if (after.slot_weights[s] != before.slot_weights[s]) target = static_cast<Index>(s);
  }
  CHECK(victim == golden.integers("victims")(row, h));
  CHECK(target == golden.integers("targets")(row, h));
}

void replay(const GoldenCase& golden) {
  const auto policy = tersekv::make_zsmerge({.proximity = golden.setting<Index>("proximity"),
                                             .residual = golden.setting<Index>("residual"),
                                             .decay = golden.setting<float>("decay"),
                                             .alpha = golden.setting<float>("alpha"),
                                             .window = golden.setting<Index>("window")});
  Trace trace(golden, policy, golden.setting<Index>("budget"));
  trace.prompt();
  for (Index h = 0; h < trace.kv_heads(); ++h) check_state(golden, trace, 0, h);
  for (Index step = 0; step < trace.steps(); ++step) {
    INFO("decode step " << step + 1);
    std::vector<Live> before;
    for (Index h = 0; h < trace.kv_heads(); ++h) before.push_back(live(trace, h));
    trace.step(step);
    for (Index h = 0; h < trace.kv_heads(); ++h) {
      INFO("head " << h);
      check_state(golden, trace, step + 1, h);
      check_choice(golden, before[static_cast<std::size_t>(h)], live(trace, h), step + 1, h);
    }
  }
}

}  // namespace

TEST_CASE("ZSMerge replays the golden traces", "[golden]") {
  support::require_device();
  for (const char* prefix :
       {"zsmerge_mha", "zsmerge_gqa3", "zsmerge_prompt_over_budget", "zsmerge_definition"}) {
    for (const std::string& name : support::golden_cases(prefix)) {
      INFO(name);
      replay(GoldenCase(name));
    }
  }
}
