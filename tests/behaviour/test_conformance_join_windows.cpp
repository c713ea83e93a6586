// SPDX-License-Identifier: Apache-2.0
#include <tersekv/policies/morphkv.hpp>
#include <tersekv/policies/snapkv.hpp>

#include "conformance_join.hpp"

// The policies that look at the attention of the latest queries join the suite.

namespace {

using namespace conformance;

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
