// SPDX-License-Identifier: Apache-2.0

// KeepKV, both selectors and all key rules, against its reference on random traces.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "trace_setups.hpp"

using namespace trace;

namespace {

template <class Codec, class Policy>
void agree(const Setup<Policy>& setup, std::uint64_t seed, double completed) {
  trace::agree<Codec>(setup, 200, seed, completed, 10);
}

}  // namespace

TEST_CASE("KeepKV with the victim selector agrees with its reference") {
  const tersekv::KeepKVOptions options{
      .recent = GENERATE(Index{1}, tersekv::kAuto),
      .sinks = GENERATE(0, 4),
      .key_rule = GENERATE(tersekv::KeyRule::mean, tersekv::KeyRule::along_query)};
  agree<float>(keepkv(tersekv::make_keepkv(options), options, reference::KeepKVSelector::victim),
               20000, 0.7);
}

TEST_CASE("KeepKV with the pair selector agrees with its reference") {
  const tersekv::KeepKVOptions options{
      .recent = GENERATE(Index{1}, tersekv::kAuto),
      .decay = 0.9f,
      .window = 5,
      .key_rule = GENERATE(tersekv::KeyRule::mean, tersekv::KeyRule::along_query)};
  agree<float>(keepkv(tersekv::make_keepkv_pair(options), options, reference::KeepKVSelector::pair),
               21000, 0.4);
}

TEST_CASE("KeepKV with the scale rule agrees with its reference while keys stay moderate") {
  const tersekv::KeepKVOptions options{.key_rule = tersekv::KeyRule::scale};
  agree<float>(keepkv(tersekv::make_keepkv(options), options, reference::KeepKVSelector::victim),
               22000, 0.3);
}

TEMPLATE_TEST_CASE("KeepKV agrees with its reference in 16 bits", "", tersekv::Half,
                   tersekv::BFloat16) {
  const tersekv::KeepKVOptions options{};
  agree<TestType>(keepkv(tersekv::make_keepkv(options), options, reference::KeepKVSelector::victim),
                  23000, 0.2);
}
