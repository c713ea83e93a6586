// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "golden_trace.hpp"
#include "tersekv/policies/weightedkv.hpp"

using support::close;
using support::close_all;
using support::GoldenCase;
using support::same_indices;
using tersekv::Index;

namespace {

using Trace = support::GoldenTrace<tersekv::WeightedKV>;

void check_state(const GoldenCase& golden, Trace& trace, Index row) {
  const auto [relative, absolute] = golden.tolerance();
  const auto want = support::unpadded(golden.integers("live_positions"), row);
  REQUIRE(same_indices(trace.positions(0), want));
  const auto entries = trace.cache().entries(0, 0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto slot = static_cast<Index>(i);
    CHECK(close_all(entries[i].value, golden.floats("live_values").vector(row, slot), relative,
                    absolute));
    CHECK(close(entries[i].score, golden.floats("live_scores")(row, slot), relative, absolute));
    CHECK(entries[i].weight == 1.0f);
  }
}

void replay(const GoldenCase& golden) {
  Trace trace(golden, tersekv::make_weightedkv(), golden.setting<Index>("budget"));
  trace.prompt();
  check_state(golden, trace, 0);
  Index merges = golden.integers("prompt_merges").dim(0);
  CHECK(trace.cache().counts(0, 0).merges == merges);
  for (Index step = 0; step < trace.steps(); ++step) {
    INFO("decode step " << step + 1);
    trace.step(step);
    check_state(golden, trace, step + 1);
    merges += golden.integers("step_merges")(step, 0) >= 0 ? 1 : 0;
    CHECK(trace.cache().counts(0, 0).merges == merges);
    CHECK(trace.cache().counts(0, 0).evictions == 0);
  }
}

}  // namespace

TEST_CASE("WeightedKV replays the golden traces", "[golden]") {
  support::require_device();
  for (const std::string& name : support::golden_cases("weightedkv_")) {
    INFO(name);
    replay(GoldenCase(name));
  }
}
