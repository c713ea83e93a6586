// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include "golden_replay.hpp"
#include "weightedkv.hpp"

using support::GoldenCase;
using support::Integer;

namespace {

void check_state(const GoldenCase& golden, const reference::Head& head, Integer row) {
  const auto [relative, absolute] = golden.tolerance();
  const auto positions = without_padding(golden.integers("live_positions"), row);
  CHECK(support::same_indices(head.positions(), positions));
  REQUIRE(head.entries().size() == positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto slot = static_cast<Integer>(i);
    CHECK(support::close_all(head.entries()[i].value,
                             golden.floats("live_values").vector(row, slot), relative, absolute));
    CHECK(support::close(reference::WeightedKV::average(head.entries()[i]),
                         golden.floats("live_scores")(row, slot), relative, absolute));
  }
}

std::vector<Integer> merges(const reference::Head& head, std::size_t first_event) {
  std::vector<Integer> result;
  for (std::size_t i = first_event; i < head.events().size(); ++i) {
    result.push_back(head.events()[i].victim);
    result.push_back(head.events()[i].target);
  }
  return result;
}

}  // namespace

TEST_CASE("reference WeightedKV replays the golden traces", "[reference][golden]") {
  for (const std::string& name : support::golden_cases("weightedkv_")) {
    INFO(name);
    const GoldenCase golden(name);
    auto head =
        reference::make_head<reference::WeightedKV>({.budget = golden.setting<Integer>("budget")});
    const GoldenTokens tokens(golden, 0);
    check_outputs(golden, "prompt_output", 0, 0, head.extend(tokens.prompt()));
    CHECK(support::same_indices(merges(head, 0), golden.integers("prompt_merges").data));
    check_state(golden, head, 0);
    for (Integer step = 0; step < tokens.steps(); ++step) {
      INFO("decode step " << step + 1);
      const std::size_t first_event = head.events().size();
      check_outputs(golden, "step_output", step, 0, head.extend(tokens.step(step)));
      CHECK(support::same_indices(merges(head, first_event),
                                  without_padding(golden.integers("step_merges"), step)));
      check_state(golden, head, step + 1);
    }
    CHECK(head.margin().smallest > 1e-3);
  }
}

TEST_CASE("reference WeightedKV refuses a budget below 6", "[reference]") {
  CHECK_THROWS_AS(reference::WeightedKV({.budget = 5}), std::invalid_argument);
  CHECK_NOTHROW(reference::WeightedKV({.budget = 6}));
}
