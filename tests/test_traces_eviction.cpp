// SPDX-License-Identifier: Apache-2.0

// Policies that only evict, against their references on random traces.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "reference/h2o.hpp"
#include "reference/kvzap.hpp"
#include "reference/morphkv.hpp"
#include "reference/snapkv.hpp"
#include "reference/streaming_llm.hpp"
#include "reference/tova.hpp"
#include "tersekv/policies/full.hpp"
#include "tersekv/policies/h2o.hpp"
#include "tersekv/policies/kvzap.hpp"
#include "tersekv/policies/morphkv.hpp"
#include "tersekv/policies/snapkv.hpp"
#include "tersekv/policies/streaming_llm.hpp"
#include "tersekv/policies/tova.hpp"
#include "trace.hpp"

using namespace trace;

namespace {

constexpr int kTraces = 200;

template <class Codec, class Policy>
void agree(const Setup<Policy>& setup, std::uint64_t seed, double completed = 0.9) {
  Tally tally;
  run_traces<Codec>(setup, kTraces, seed, tally);
  CAPTURE(tally.traces, tally.completed, tally.entries, tally.ties);
  CHECK(enough(tally, completed));
  CHECK(tally.entries > 20L * tally.traces / support::kOneTraceIn);
}

}  // namespace

TEMPLATE_TEST_CASE("Full agrees with its reference", "", float, tersekv::Half, tersekv::BFloat16) {
  agree<TestType>(Setup<tersekv::Full>{tersekv::Full{}, 1,
                                       [](Index) { return std::make_shared<reference::Full>(); }},
                  1000);
}

TEMPLATE_TEST_CASE("StreamingLLM agrees with its reference", "", float, tersekv::Half) {
  const Index sinks = GENERATE(0, 4);
  agree<TestType>(
      Setup<tersekv::StreamingLLM>{tersekv::make_streaming_llm({.sinks = sinks}), sinks + 1,
                                   [=](Index budget) {
                                     return std::make_shared<reference::StreamingLLM>(
                                         reference::StreamingLLM::Options{.budget = budget,
                                                                          .sinks = sinks});
                                   }},
      2000);
}

TEMPLATE_TEST_CASE("H2O agrees with its reference", "", float, tersekv::BFloat16) {
  agree<TestType>(Setup<tersekv::H2O>{tersekv::make_h2o(), 1,
                                      [](Index budget) {
                                        return std::make_shared<reference::H2O>(
                                            reference::H2O::Options{.budget = budget});
                                      }},
                  3000);
}

TEMPLATE_TEST_CASE("TOVA agrees with its reference", "", float, tersekv::Half) {
  agree<TestType>(Setup<tersekv::TOVA>{tersekv::make_tova(), 1,
                                       [](Index budget) {
                                         return std::make_shared<reference::TOVA>(
                                             reference::TOVA::Options{.budget = budget});
                                       }},
                  4000);
}

TEMPLATE_TEST_CASE("SnapKV agrees with its reference", "", float, tersekv::Half) {
  const Index window = GENERATE(1, 6);
  agree<TestType>(
      Setup<tersekv::SnapKV>{.policy = tersekv::make_snapkv({.window = window, .kernel = 5}),
                             .smallest_budget = window,
                             .reference =
                                 [=](Index budget) {
                                   return std::make_shared<reference::SnapKV>(
                                       reference::SnapKV::Options{
                                           .budget = budget, .window = window, .kernel = 5});
                                 },
                             .ties = false},  // pooling adds equal numbers in different orders
      5000);
}

TEMPLATE_TEST_CASE("MorphKV agrees with its reference", "", float, tersekv::Half) {
  const auto fusion = GENERATE(tersekv::Fusion::sum, tersekv::Fusion::max);
  const Index recent = GENERATE(1, 5), interval = GENERATE(1, 4);
  agree<TestType>(
      Setup<tersekv::MorphKV>{
          tersekv::make_morphkv({.recent = recent, .fusion = fusion, .interval = interval}), recent,
          [=](Index budget) {
            return std::make_shared<reference::MorphKV>(reference::MorphKV::Options{
                .budget = budget,
                .recent = recent,
                .fusion = fusion == tersekv::Fusion::sum ? reference::Fusion::sum
                                                         : reference::Fusion::max,
                .interval = interval});
          }},
      6000);
}

TEMPLATE_TEST_CASE("KVzap agrees with its reference", "", float, tersekv::BFloat16) {
  const Index window = GENERATE(0, 9);
  agree<TestType>(
      Setup<tersekv::KVzap>{tersekv::make_kvzap({.threshold = 0.25f, .window = window}), 1,
                            [=](Index) {
                              return std::make_shared<reference::KVzap>(
                                  reference::KVzap::Options{.threshold = 0.25, .window = window});
                            }},
      7000);
}
