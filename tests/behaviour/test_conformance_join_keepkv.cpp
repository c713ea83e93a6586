// SPDX-License-Identifier: Apache-2.0
#include <tersekv/policies/keepkv.hpp>

#include "conformance_join.hpp"

// KeepKV joins the suite, with both selectors and all key rules.

namespace {

using namespace conformance;

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
