// SPDX-License-Identifier: Apache-2.0

// Policies that merge, against their references on random traces.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "trace_setups.hpp"

using namespace trace;

namespace {

/// `completed`: the share of traces whose every choice must be clear; lower for coarse storage,
/// where a merged key is rounded and a later choice may go either way.
template <class Codec, class Policy>
void agree(const Setup<Policy>& setup, std::uint64_t seed, double completed) {
  trace::agree<Codec>(setup, 300, seed, completed, 10);
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

TEMPLATE_TEST_CASE("ZSMerge agrees with its reference in 16 bits", "", tersekv::Half,
                   tersekv::BFloat16) {
  agree<TestType>(zsmerge(tersekv::kAuto, 2, 0.98f, 1.0f, 8), 12000, 0.3);
}

TEST_CASE("WeightedKV agrees with its reference") {
  agree<float>(weightedkv(GENERATE(0, 4)), 13000, 0.8);
}

TEMPLATE_TEST_CASE("WeightedKV agrees with its reference in 16 bits", "", tersekv::Half,
                   tersekv::BFloat16) {
  agree<TestType>(weightedkv(4), 14000, 0.3);
}
