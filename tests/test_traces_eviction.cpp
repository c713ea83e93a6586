// SPDX-License-Identifier: Apache-2.0

// Policies that only evict, against their references on random traces.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "trace_setups.hpp"

using namespace trace;

namespace {

template <class Codec, class Policy>
Tally agree(const Setup<Policy>& setup, std::uint64_t seed, double completed = 0.9) {
  return trace::agree<Codec>(setup, 200, seed, completed, 20);
}

}  // namespace

TEMPLATE_TEST_CASE("Full agrees with its reference", "", float, tersekv::Half, tersekv::BFloat16) {
  agree<TestType>(full(), 1000);
}

TEMPLATE_TEST_CASE("StreamingLLM agrees with its reference", "", float, tersekv::Half) {
  agree<TestType>(streaming_llm(GENERATE(0, 4)), 2000);
}

TEMPLATE_TEST_CASE("H2O agrees with its reference", "", float, tersekv::BFloat16) {
  agree<TestType>(h2o(), 3000);
}

TEMPLATE_TEST_CASE("TOVA agrees with its reference", "", float, tersekv::Half) {
  const Tally tally = agree<TestType>(tova(), 4000);
  // Choices that only the position decides, in the traces that are made for them.
  if (support::kOneTraceIn == 1) CHECK(tally.ties > 100);
}

TEMPLATE_TEST_CASE("SnapKV agrees with its reference", "", float, tersekv::Half) {
  agree<TestType>(snapkv(GENERATE(1, 6)), 5000);
}

TEMPLATE_TEST_CASE("MorphKV agrees with its reference", "", float, tersekv::Half) {
  const auto fusion = GENERATE(tersekv::Fusion::sum, tersekv::Fusion::max);
  const Index recent = GENERATE(1, 5), interval = GENERATE(1, 4);
  agree<TestType>(morphkv(fusion, recent, interval), 6000);
}

TEST_CASE("MorphKV leaves its first layers alone as its reference does") {
  for (const Index uncompressed : {kLayer, kLayer + 1}) {
    Setup<tersekv::MorphKV> setup = morphkv(tersekv::Fusion::sum, 5, 1, uncompressed);
    setup.evicts = uncompressed <= kLayer;
    agree<float>(setup, 6500);
  }
}

TEMPLATE_TEST_CASE("KVzap agrees with its reference", "", float, tersekv::BFloat16) {
  agree<TestType>(kvzap(GENERATE(0, 9)), 7000);
}
