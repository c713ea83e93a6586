// SPDX-License-Identifier: Apache-2.0
#include <tersekv/policies/full.hpp>
#include <tersekv/policies/h2o.hpp>
#include <tersekv/policies/kvzap.hpp>
#include <tersekv/policies/morphkv.hpp>
#include <tersekv/policies/snapkv.hpp>
#include <tersekv/policies/streaming_llm.hpp>
#include <tersekv/policies/tova.hpp>

#include "conformance_join.hpp"

// The policies that evict join the suite. (One file for many: their caches share most of what a
// compiler has to do.)

namespace {

using namespace conformance;

// The policies that look at no attention.

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

// The policies that evict by accumulated or by the latest attention.

const Join h2o(tersekv::make_h2o(), {.name = "H2O",
                                     .observes_every_row = true,
                                     .intact = [](Index p, Index seen, Index budget) {
                                       return p >= seen - (budget + 1) / 2 ? Intact::entry
                                                                           : Intact::nothing;
                                     }});

const Join tova(tersekv::make_tova(), {.name = "TOVA", .intact = [](Index p, Index seen, Index) {
                                         return p >= seen - 1 ? Intact::entry : Intact::nothing;
                                       }});

// The policies that look at the attention of the latest queries.

constexpr auto latest_six = [](Index p, Index seen, Index) {
  return p >= seen - 6 ? Intact::entry : Intact::nothing;
};

const Join snapkv(tersekv::make_snapkv({.window = 6, .kernel = 5}),
                  {.name = "SnapKV", .grows_while_decoding = true, .intact = latest_six});

const Join sum(tersekv::make_morphkv({.recent = 6}), {.name = "MorphKV", .intact = latest_six});

const Join max_every_four(
    tersekv::make_morphkv({.recent = 6, .fusion = tersekv::Fusion::max, .interval = 4}),
    {.name = "MorphKV max, interval 4", .beyond = 3, .intact = latest_six});

const Join first_layers(tersekv::make_morphkv({.recent = 6, .uncompressed_layers = 1}),
                        {.name = "MorphKV, uncompressed layer",
                         .has_budget = false,
                         .weights_sum_to_tokens = true,
                         .intact = [](Index, Index, Index) { return Intact::entry; }});

}  // namespace
