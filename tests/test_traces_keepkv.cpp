// SPDX-License-Identifier: Apache-2.0

// KeepKV, both selectors and all key rules, against its reference on random traces.

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "reference/keepkv.hpp"
#include "tersekv/policies/keepkv.hpp"
#include "trace.hpp"

using namespace trace;

namespace {

constexpr int kTraces = 200;

reference::KeyRule same(tersekv::KeyRule rule) {
  switch (rule) {
    case tersekv::KeyRule::scale:
      return reference::KeyRule::scale;
    case tersekv::KeyRule::along_query:
      return reference::KeyRule::along_query;
    default:
      return reference::KeyRule::mean;
  }
}

template <class Policy>
Setup<Policy> keepkv(const Policy& policy, const tersekv::KeepKVOptions& options,
                     reference::KeepKVSelector selector) {
  return {.policy = policy,
          .smallest_budget = options.sinks + 2 + std::max<Index>(options.recent, options.sinks + 2),
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::KeepKV>(
                    reference::KeepKV::Options{.budget = budget,
                                               .recent = options.recent,
                                               .sinks = options.sinks,
                                               .decay = static_cast<double>(options.decay),
                                               .window = options.window,
                                               .selector = selector,
                                               .key_rule = same(options.key_rule)});
              },
          .merges = true,
          .smallest_dim = 8,  // in few dimensions many cosines are equal up to rounding
          .ties = false,      // the mean of equal keys is equal only up to rounding
          .error_growth = options.key_rule == tersekv::KeyRule::scale ? 100.0 : 1.0};
}

template <class Codec, class Policy>
void agree(const Setup<Policy>& setup, std::uint64_t seed, double completed) {
  Tally tally;
  run_traces<Codec>(setup, kTraces, seed, tally);
  CAPTURE(tally.traces, tally.completed, tally.entries, tally.ties);
  CHECK(enough(tally, completed));
  CHECK(tally.entries > 10L * tally.traces / support::kOneTraceIn);
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

TEST_CASE("KeepKV agrees with its reference in half precision") {
  const tersekv::KeepKVOptions options{};
  agree<tersekv::Half>(
      keepkv(tersekv::make_keepkv(options), options, reference::KeepKVSelector::victim), 23000,
      0.05);
}
