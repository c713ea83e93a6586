// SPDX-License-Identifier: Apache-2.0
#include <tersekv/policies/keepkv.hpp>
#include <tersekv/policies/weightedkv.hpp>
#include <tersekv/policies/zsmerge.hpp>

#include "conformance_join.hpp"

// The policies that merge join the suite.

namespace {

using namespace conformance;

// The policies that merge into slots and into neighbours.

constexpr auto proximity = [](Index p, Index seen, Index budget) {
  return p >= seen - budget / 2 ? Intact::entry : Intact::nothing;
};

const Join zsmerge(tersekv::make_zsmerge({.residual = 3, .window = 4}),
                   {.name = "ZSMerge", .weights_sum_to_tokens = true, .intact = proximity});

const Join uncompensated(tersekv::make_zsmerge({.alpha = 0}), {.name = "ZSMerge, alpha 0",
                                                               .weights_sum_to_tokens = true,
                                                               .intact = proximity});

const Join eviction(tersekv::make_zsmerge({.residual = 0}),
                    {.name = "ZSMerge, no residual", .intact = proximity});

// The first of the recent tokens may be a victim's right neighbour, so its value changes.
const Join weightedkv(tersekv::make_weightedkv(),
                      {.name = "WeightedKV",
                       .observes_every_row = true,
                       .intact = [](Index p, Index seen, Index budget) {
                         if (p < 4) return Intact::entry;
                         const Index recent = std::max<Index>(1, budget / 2 - 4);
                         return p >= seen - recent ? Intact::key : Intact::nothing;
                       }});

// KeepKV, with both selectors and all key rules.

constexpr auto sinks_and_recent = [](Index p, Index seen, Index budget) {
  return p < 4 || p >= seen - budget / 2 ? Intact::entry : Intact::nothing;
};

const Join victim(tersekv::make_keepkv({.window = 5}),
                  {.name = "KeepKV", .weights_sum_to_tokens = true, .intact = sinks_and_recent});

const Join along_query(tersekv::make_keepkv({.key_rule = tersekv::KeyRule::along_query}),
                       {.name = "KeepKV, along the query",
                        .weights_sum_to_tokens = true,
                        .intact = sinks_and_recent});

const Join pair(tersekv::make_keepkv_pair(), {.name = "KeepKV, pair",
                                              .weights_sum_to_tokens = true,
                                              .intact = sinks_and_recent});

const Join paper(tersekv::make_keepkv_paper(), {.name = "KeepKV, the paper's",
                                                .weights_sum_to_tokens = true,
                                                .intact = sinks_and_recent});

}  // namespace
