// SPDX-License-Identifier: Apache-2.0

// What users get who name nothing: the numbers of the papers, or of our own measurements where they
// are better (METHODS and the policies' headers say which). Traces hand their numbers to library
// and reference alike, and would not see another default.

#include <catch2/catch_test_macros.hpp>
#include <type_traits>

#include "tersekv/tersekv.hpp"

namespace {

using namespace tersekv;

// Not where each is defined: whoever includes them all would wait for it.
template <class... Policies>
inline constexpr bool kArePolicies = (CachePolicy<Policies> && ...);
static_assert(kArePolicies<Full, StreamingLLM, H2O, TOVA, SnapKV, MorphKV, WeightedKV, ZSMerge,
                           KeepKV, KeepKVPair, KVzap>);

TEST_CASE("defaults: StreamingLLM, H2O, TOVA and SnapKV") {
  CHECK(StreamingLLM{}.selector().protection.sinks == 4);
  CHECK(H2O{}.selector().protection.recent_of(9) == 5);
  CHECK(H2O{}.selector().protection.sinks == 0);
  CHECK(TOVA{}.selector().protection.recent_of(9) == 1);
  const SnapKV snapkv;
  CHECK(snapkv.scorer().window == 32);
  CHECK(snapkv.scorer().kernel == 7);
  CHECK(snapkv.selector().protection.recent_of(100) == 32);
}

TEST_CASE("defaults: ZSMerge") {
  const ZSMerge policy;
  CHECK(policy.scorer().decay == 0.98f);
  CHECK(policy.scorer().window == 8);
  CHECK(policy.alpha() == 1.0f);
  CHECK(policy.selector().protection.recent_of(101) == 50);
  // Residual slots: 2 % of what the latest half leaves, rounded, at least 1.
  const Index slots[][2] = {{2, 1},   {148, 1}, {149, 2},   {150, 2},   {248, 2},
                            {250, 3}, {820, 8}, {1024, 10}, {4096, 41}, {32768, 328}};
  for (const auto& [budget, want] : slots) {
    CAPTURE(budget);
    CHECK(policy.merger().reserved(budget) == want);
  }
  CHECK(make_zsmerge({.proximity = 100}).merger().reserved(400) == 6);
  CHECK(make_zsmerge({.residual = 0}).merger().reserved(400) == 0);
}

TEST_CASE("defaults: KeepKV, its pair selector, and the paper's own choice") {
  const auto same = [](const auto& policy, float decay, KeyRule rule) {
    CHECK(policy.scorer().decay == decay);
    CHECK(policy.scorer().window == 32);
    CHECK(policy.alpha() == 1.0f);
    CHECK(policy.selector().protection.sinks == 4);
    CHECK(policy.selector().protection.recent_of(101) == 50);
    CHECK(policy.merger().key_rule == rule);
  };
  same(KeepKV{}, 0.98f, KeyRule::mean);
  same(make_keepkv(), 0.98f, KeyRule::mean);
  same(KeepKVPair{}, 0.98f, KeyRule::mean);
  same(make_keepkv_pair(), 0.98f, KeyRule::mean);
  same(make_keepkv_paper(), 0.9f, KeyRule::scale);
  CHECK(std::is_same_v<decltype(make_keepkv_paper()), KeepKVPair>);
}

TEST_CASE("defaults: WeightedKV, MorphKV and KVzap") {
  const Protection weighted = WeightedKV{}.selector().protection;
  CHECK(weighted.sinks == 4);
  CHECK(weighted.recent_of(100) == 46);
  for (const Index budget : {6, 9}) CHECK(weighted.recent_of(budget) == 1);
  const MorphKV morph;
  CHECK(morph.scorer().window == 32);
  CHECK(morph.scorer().fusion == Fusion::sum);
  CHECK(morph.selector().protection.recent_of(1000) == 32);
  CHECK(morph.selector().interval == 1);
  CHECK(morph.selector().uncompressed_layers == 0);
  const KVzap zap;
  CHECK(zap.selector().protection.recent_of(kUnlimited) == 128);
  CHECK(zap.selector().threshold == -4.0f);
}

}  // namespace
