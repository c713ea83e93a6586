// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "golden_trace.hpp"
#include "tersekv/policies/morphkv.hpp"

using support::GoldenCase;
using tersekv::Index;

namespace {

void replay(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto recent = golden.setting<Index>("recent");
  const Index budget = golden.setting<Index>("capacity") + recent;
  const auto policy = tersekv::make_morphkv(
      {.recent = recent,
       .fusion = golden.setting<std::string>("fusion") == "max" ? tersekv::Fusion::max
                                                                : tersekv::Fusion::sum,
       .interval = golden.setting<Index>("interval")});
  support::GoldenTrace<tersekv::MorphKV> trace(golden, policy, budget);
  trace.prompt();
  for (Index step = 0; step < trace.steps(); ++step) {
    for (Index h = 0; h < trace.kv_heads(); ++h) {
      INFO("before decode step " << step << ", head " << h);
      CHECK(support::same_indices(trace.positions(h),
                                  support::unpadded(golden.integers("kept_positions"), step, h)));
      // The fused score of an older entry is still that of the selection which spared it.
      if (!golden.has("fused_scores") || trace.cache().length(0, h) < budget) continue;
      const auto entries = trace.cache().entries(0, h);
      for (Index i = 0; i < budget - recent; ++i) {
        CHECK(support::close(entries[static_cast<std::size_t>(i)].score,
                             golden.floats("fused_scores")(step, h, i), relative, absolute));
      }
    }
    trace.step(step);
  }
}

}  // namespace

TEST_CASE("MorphKV replays the golden traces", "[golden]") {
  support::require_device();
  for (const std::string& name : support::golden_cases("morphkv_")) {
    INFO(name);
    replay(GoldenCase(name));
  }
}
