// SPDX-License-Identifier: Apache-2.0

// Policies that merge, against their references on random traces.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "reference/weightedkv.hpp"
#include "reference/zsmerge.hpp"
#include "tersekv/policies/weightedkv.hpp"
#include "tersekv/policies/zsmerge.hpp"
#include "trace.hpp"

using namespace trace;

namespace {

constexpr int kTraces = 300;

/// `completed`: the share of traces whose every choice must be clear; lower for coarse storage,
/// where a merged key is rounded and a later choice may go either way.
template <class Codec, class Policy>
void agree(const Setup<Policy>& setup, std::uint64_t seed, double completed) {
  Tally tally;
  run_traces<Codec>(setup, kTraces, seed, tally);
  CAPTURE(tally.traces, tally.completed, tally.entries, tally.ties);
  CHECK(enough(tally, completed));
  CHECK(tally.entries > 10L * tally.traces / support::kOneTraceIn);
}

Setup<tersekv::ZSMerge> zsmerge(Index proximity, Index residual, float decay, float alpha,
                                Index window) {
  return {.policy = tersekv::make_zsmerge({.proximity = proximity,
                                           .residual = residual,
                                           .decay = decay,
                                           .alpha = alpha,
                                           .window = window}),
          .smallest_budget = 2 + std::max<Index>(proximity, 1) + std::max<Index>(residual, 1),
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::ZSMerge>(
                    reference::ZSMerge::Options{.budget = budget,
                                                .proximity = proximity,
                                                .residual = residual,
                                                .decay = static_cast<double>(decay),
                                                .alpha = static_cast<double>(alpha),
                                                .window = window});
              },
          .merges = true};
}

Setup<tersekv::WeightedKV> weightedkv(Index sinks) {
  return {.policy = tersekv::make_weightedkv({.sinks = sinks}),
          .smallest_budget = 6,
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::WeightedKV>(
                    reference::WeightedKV::Options{.budget = budget, .sinks = sinks});
              },
          .merges = true};
}

}  // namespace

TEST_CASE("ZSMerge agrees with its reference") {
  const Index residual = GENERATE(0, 1, 2, 3, tersekv::kAuto);
  const Index proximity = GENERATE(Index{2}, tersekv::kAuto);
  agree<float>(zsmerge(proximity, residual, 0.98f, 1.0f, 8), 10000, 0.8);
}

TEST_CASE("ZSMerge agrees with its reference for other decays, alphas and windows") {
  const float alpha = GENERATE(0.0f, 0.6f);
  const Index window = GENERATE(1, 100);
  agree<float>(zsmerge(tersekv::kAuto, 2, 0.5f, alpha, window), 11000, 0.7);
}

TEST_CASE("ZSMerge agrees with its reference in half precision") {
  agree<tersekv::Half>(zsmerge(tersekv::kAuto, 2, 0.98f, 1.0f, 8), 12000, 0.1);
}

TEST_CASE("WeightedKV agrees with its reference") {
  agree<float>(weightedkv(GENERATE(0, 4)), 13000, 0.8);
}

TEST_CASE("WeightedKV agrees with its reference in half precision") {
  agree<tersekv::Half>(weightedkv(4), 14000, 0.1);
}
