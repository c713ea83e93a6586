// SPDX-License-Identifier: Apache-2.0
#include <tersekv/policies/full.hpp>
#include <tersekv/policies/kvzap.hpp>
#include <tersekv/policies/streaming_llm.hpp>

#include "conformance_join.hpp"

// The policies that look at no attention join the suite.

namespace {

using namespace conformance;

const Join full(tersekv::Full{}, {.name = "Full",
                                  .has_budget = false,
                                  .weights_sum_to_tokens = true,
                                  .intact = [](Index, Index, Index) { return Intact::entry; }});

const Join streaming(tersekv::make_streaming_llm(),
                     {.name = "StreamingLLM", .intact = [](Index p, Index seen, Index budget) {
                        const bool kept = p < 4 || p >= seen - (budget - 4);
                        return kept ? Intact::entry : Intact::nothing;
                      }});

const Join kvzap(tersekv::make_kvzap({.threshold = -3, .window = 9}),
                 {.name = "KVzap", .has_budget = false, .intact = [](Index p, Index seen, Index) {
                    return p >= seen - 9 ? Intact::entry : Intact::nothing;
                  }});

}  // namespace
