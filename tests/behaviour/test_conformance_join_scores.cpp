// SPDX-License-Identifier: Apache-2.0
#include <tersekv/policies/h2o.hpp>
#include <tersekv/policies/tova.hpp>

#include "conformance_join.hpp"

// The policies that evict by accumulated or by the latest attention join the suite.

namespace {

using namespace conformance;

const Join h2o(tersekv::make_h2o(), {.name = "H2O",
                                     .observes_every_row = true,
                                     .intact = [](Index p, Index seen, Index budget) {
                                       return p >= seen - (budget + 1) / 2 ? Intact::entry
                                                                           : Intact::nothing;
                                     }});

const Join tova(tersekv::make_tova(), {.name = "TOVA", .intact = [](Index p, Index seen, Index) {
                                         return p >= seen - 1 ? Intact::entry : Intact::nothing;
                                       }});

}  // namespace
