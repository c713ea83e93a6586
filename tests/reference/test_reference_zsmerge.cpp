// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <set>

#include "golden_replay.hpp"
#include "zsmerge.hpp"

using support::GoldenCase;
using support::Integer;

namespace {

/// The slots of a head in the order in which they were opened, which is the golden order.
std::vector<reference::Entry> slots_in_order(const reference::Head& head) {
  std::vector<reference::Entry> slots;
  for (const auto& event : head.events()) {
    if (!event.opened_slot) continue;
    for (const auto& entry : head.entries())
      if (entry.residual && entry.position == event.victim) slots.push_back(entry);
  }
  return slots;
}

void check_state(const GoldenCase& golden, const reference::Head& head, Integer row,
                 Integer kv_head) {
  const auto [relative, absolute] = golden.tolerance();
  std::vector<Integer> positions;
  std::vector<double> scores;
  for (const auto& entry : head.entries()) {
    if (entry.residual) continue;
    positions.push_back(entry.position);
    scores.push_back(entry.score);
  }
  const auto& live = golden.integers("live_positions");
  CHECK(support::same_indices(positions, without_padding(live, row, kv_head)));
  auto wanted = golden.floats("live_scores").vector<double>(row, kv_head);
  wanted.resize(positions.size());
  CHECK(support::close_all(scores, wanted, relative, absolute));

  const auto slots = slots_in_order(head);
  REQUIRE(std::ssize(slots) == golden.integers("residual_count")(row, kv_head));
  for (Integer s = 0; s < std::ssize(slots); ++s) {
    const auto& slot = slots[static_cast<std::size_t>(s)];
    CHECK(slot.weight == static_cast<double>(golden.integers("residual_weights")(row, kv_head, s)));
    CHECK(support::close_all(slot.key, golden.floats("residual_keys").vector(row, kv_head, s),
                             relative, absolute));
    CHECK(support::close_all(slot.value, golden.floats("residual_values").vector(row, kv_head, s),
                             relative, absolute));
  }
  // Without a residual slot nothing absorbs the tokens that leave.
  if (golden.setting<Integer>("residual") > 0)
    CHECK(head.total_weight() == static_cast<double>(head.tokens_seen()));
}

/// Positions of the step's victim and target must be the golden ones, -1 for none. With slots to
/// spare a victim has no target.
void check_events(const GoldenCase& golden, const reference::Head& head, std::size_t first_event,
                  Integer row, Integer kv_head) {
  Integer victim = -1, target = -1;
  REQUIRE(head.events().size() <= first_event + 1);
  if (head.events().size() > first_event) {
    victim = head.events()[first_event].victim;
    const Integer position = head.events()[first_event].target;
    const auto slots = slots_in_order(head);
    for (std::size_t s = 0; s < slots.size(); ++s)
      if (slots[s].position == position) target = static_cast<Integer>(s);
  }
  CHECK(victim == golden.integers("victims")(row, kv_head));
  CHECK(target == golden.integers("targets")(row, kv_head));
}

void replay(const GoldenCase& golden, Integer kv_head) {
  reference::ZSMerge::Options options;
  options.budget = golden.setting<Integer>("budget");
  options.proximity = golden.setting<Integer>("proximity");
  options.residual = golden.setting<Integer>("residual");
  options.decay = golden.setting<double>("decay");
  options.alpha = golden.setting<double>("alpha");
  options.window = golden.setting<Integer>("window");
  auto head = reference::make_head<reference::ZSMerge>(options);
  const GoldenTokens tokens(golden, kv_head);
  check_outputs(golden, "prompt_output", 0, kv_head, head.extend(tokens.prompt()));
  check_state(golden, head, 0, kv_head);
  for (Integer step = 0; step < tokens.steps(); ++step) {
    INFO("decode step " << step + 1);
    const std::size_t first_event = head.events().size();
    check_outputs(golden, "step_output", step, kv_head, head.extend(tokens.step(step)));
    check_state(golden, head, step + 1, kv_head);
    check_events(golden, head, first_event, step + 1, kv_head);
    CHECK(std::ssize(head.entries()) <= options.budget);
  }
  // Our margin is that of the whole prompt at once, theirs that of every victim in turn.
  CHECK(head.margin().smallest > 1e-5);
  CHECK(head.margin().exact_ties == 0);
}

}  // namespace

TEST_CASE("reference ZSMerge replays the golden traces", "[reference][golden]") {
  for (const char* prefix :
       {"zsmerge_mha", "zsmerge_gqa3", "zsmerge_prompt_over_budget", "zsmerge_definition"}) {
    for (const std::string& name : support::golden_cases(prefix)) {
      INFO(name);
      const GoldenCase golden(name);
      for (Integer h = 0; h < golden.setting<Integer>("num_kv_heads"); ++h) replay(golden, h);
    }
  }
}
