// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include "golden_replay.hpp"
#include "morphkv.hpp"

using support::GoldenCase;
using support::Integer;

namespace {

reference::MorphKV::Options options_of(const GoldenCase& golden) {
  reference::MorphKV::Options options;
  options.recent = golden.setting<Integer>("recent");
  options.budget = golden.setting<Integer>("capacity") + options.recent;
  options.fusion = golden.setting<std::string>("fusion") == "max" ? reference::Fusion::max
                                                                  : reference::Fusion::sum;
  options.interval = golden.setting<Integer>("interval");
  return options;
}

void replay(const GoldenCase& golden, Integer kv_head) {
  const auto [relative, absolute] = golden.tolerance();
  const auto options = options_of(golden);
  auto head = reference::make_head<reference::MorphKV>(options);
  const GoldenTokens tokens(golden, kv_head);
  check_outputs(golden, "prompt_output", 0, kv_head, head.extend(tokens.prompt()));
  const auto& kept = golden.integers("kept_positions");
  for (Integer step = 0; step < tokens.steps(); ++step) {
    INFO("before decode step " << step);
    CHECK(support::same_indices(head.positions(), without_padding(kept, step, kv_head)));
    // The fused score of an older entry is that of the selection which spared it.
    if (golden.has("fused_scores") && std::ssize(head.entries()) == options.budget) {
      std::vector<double> scores, wanted;
      for (std::size_t i = 0; i + static_cast<std::size_t>(options.recent) < head.entries().size();
           ++i) {
        scores.push_back(head.entries()[i].score);
        wanted.push_back(golden.floats("fused_scores")(step, kv_head, static_cast<Integer>(i)));
      }
      CHECK(support::close_all(scores, wanted, relative, absolute));
    }
    const auto outputs = head.extend(tokens.step(step));
    if (golden.has("step_output")) check_outputs(golden, "step_output", step, kv_head, outputs);
  }
  CHECK(head.margin().smallest > 1e-3);
  CHECK(head.margin().exact_ties == 0);
}

}  // namespace

TEST_CASE("reference MorphKV replays the golden traces", "[reference][golden]") {
  for (const std::string& name : support::golden_cases("morphkv_")) {
    INFO(name);
    const GoldenCase golden(name);
    for (Integer h = 0; h < golden.setting<Integer>("num_kv_heads"); ++h) replay(golden, h);
  }
}

TEST_CASE("reference MorphKV compresses every interval and spares the first layers",
          "[reference]") {
  const GoldenCase golden("morphkv_definition_sum_gqa3");
  const GoldenTokens tokens(golden, 0);
  auto options = options_of(golden);
  options.interval = 6;
  auto head = reference::make_head<reference::MorphKV>(options);
  head.extend(tokens.prompt());
  CHECK(std::ssize(head.entries()) == options.budget);  // a prompt longer than the interval
  for (Integer step = 0; step < 24; ++step) {
    head.extend(tokens.step(step));
    const Integer since = (step + 1) % options.interval;
    CHECK(std::ssize(head.entries()) == options.budget + since);
  }
  options.uncompressed_layers = 3;
  options.layer = 2;
  auto uncompressed = reference::make_head<reference::MorphKV>(options);
  uncompressed.extend(tokens.prompt());
  CHECK(std::ssize(uncompressed.entries()) == uncompressed.tokens_seen());
}
