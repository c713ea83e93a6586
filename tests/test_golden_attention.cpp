// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cache_under_test.hpp"
#include "given_weights.hpp"
#include "support/compare.hpp"
#include "support/golden.hpp"

using support::close;
using support::close_all;
using support::GivenWeights;
using support::GoldenCase;
using support::Tolerance;
using tersekv::GroupReduce;
using tersekv::Index;

namespace {

/// What one query token of one group gets from `entries` golden entries.
struct Result {
  std::vector<float> output, lse, attention;
};

using Cache = support::CacheUnderTest<GivenWeights>;

/// A cache that holds the entries of row `row` of a case's k, v and weights.
Cache filled(const GoldenCase& golden, Index row, Index entries, float alpha, GroupReduce reduce,
             Index leaving = -1) {
  GivenWeights policy;
  policy.exponent = alpha;
  policy.leaving = leaving;
  const auto dim = golden.setting<Index>("head_dim");
  Cache cache({.num_q_heads = golden.setting<Index>("group_size"),
               .num_kv_heads = 1,
               .head_dim = dim,
               .group_reduce = reduce,
               .page_size = 16},
              policy);
  cache.append(0, tersekv::nhd_view(golden.floats("k").row(row), entries, 1, dim),
               tersekv::nhd_view(golden.floats("v").row(row), entries, 1, dim),
               {golden.floats("weights").row(row), 1});
  return cache;
}

Result attend(Cache& cache, const float* queries) {
  const Index group = cache.config().num_q_heads, dim = cache.config().head_dim;
  const Index entries = cache.length(0, 0);
  Result result{std::vector<float>(static_cast<std::size_t>(group * dim)),
                std::vector<float>(static_cast<std::size_t>(group)),
                std::vector<float>(static_cast<std::size_t>(entries))};
  cache.attend(0, tersekv::nhd_view(queries, 1, group, dim),
               tersekv::nhd_view(result.output.data(), 1, group, dim),
               {.lse = result.lse.data(), .rows = {result.attention.data(), 1, entries, entries}});
  return result;
}

/// The last axes of a tensor under the leading indices, `count` elements of them.
template <class... I>
std::vector<float> flat(const support::Tensor<float>& tensor, Index count, I... leading) {
  const float* begin = tensor.row(leading...);
  return {begin, begin + count};
}

void check_scenario(const GoldenCase& golden, Index s, Index a, float alpha, Tolerance tolerance) {
  const auto [relative, absolute] = tolerance;
  const auto group = golden.setting<Index>("group_size"), dim = golden.setting<Index>("head_dim");
  const Index entries = golden.integers("entries")(s);
  const std::pair<GroupReduce, const char*> reductions[] = {{GroupReduce::sum, "attention_sum"},
                                                            {GroupReduce::max, "attention_max"},
                                                            {GroupReduce::mean, "attention_mean"}};
  for (const auto& [reduce, tensor] : reductions) {
    INFO(tensor);
    Cache cache = filled(golden, s, entries, alpha, reduce);
    const Result got = attend(cache, golden.floats("q").row(s));
    CHECK(close_all(got.output, flat(golden.floats("output"), group * dim, s, a), relative,
                    absolute));
    CHECK(close_all(got.lse, flat(golden.floats("lse"), group, s, a), relative, absolute));
    CHECK(close_all(got.attention, flat(golden.floats(tensor), entries, s, a), relative, absolute));
  }
}

}  // namespace

TEST_CASE("attention agrees with the golden softmax", "[golden]") {
  support::require_device();
  for (const std::string& name : support::golden_cases("attention_group")) {
    const GoldenCase golden(name);
    const auto alphas = golden.setting<std::vector<float>>("alphas");
    const auto scenarios = golden.setting<std::vector<std::string>>("scenarios");
    REQUIRE(scenarios.size() == 4);
    for (Index s = 0; s < std::ssize(scenarios); ++s) {
      const std::string& scenario = scenarios[static_cast<std::size_t>(s)];
      const bool wide = scenario.find("200") != std::string::npos;
      for (Index a = 0; a < std::ssize(alphas); ++a) {
        const float alpha = alphas[static_cast<std::size_t>(a)];
        INFO(name << ", " << scenario << ", alpha " << alpha);
        check_scenario(golden, s, a, alpha,
                       wide ? golden.tolerance("wide_logits") : golden.tolerance());
      }
    }
  }
}

TEST_CASE("evicting an entry agrees with the golden eviction identity", "[golden]") {
  support::require_device();
  const GoldenCase golden("eviction_identity");
  const auto [relative, absolute] = golden.tolerance();
  const auto group = golden.setting<Index>("group_size"), dim = golden.setting<Index>("head_dim");
  for (Index t = 0; t < golden.setting<Index>("trials"); ++t) {
    INFO("trial " << t);
    const Index evicted = golden.integers("evicted")(t);
    Cache cache = filled(golden, t, golden.setting<Index>("entries"), golden.floats("alpha")(t),
                         GroupReduce::max, evicted);
    const Result before = attend(cache, golden.floats("q").row(t));
    CHECK(close_all(before.output, flat(golden.floats("output_before"), group * dim, t), relative,
                    absolute));
    const auto of_evicted = golden.floats("attention_of_evicted").vector(t);
    CHECK(close(before.attention[static_cast<std::size_t>(evicted)],
                *std::max_element(of_evicted.begin(), of_evicted.end()), relative, absolute));
    cache.compress(0);
    REQUIRE(cache.length(0, 0) == golden.setting<Index>("entries") - 1);
    const Result after = attend(cache, golden.floats("q").row(t));
    CHECK(close_all(after.output, flat(golden.floats("output_after"), group * dim, t), relative,
                    absolute));
  }
}
