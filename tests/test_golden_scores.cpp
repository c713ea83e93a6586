// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "support/compare.hpp"
#include "support/golden.hpp"
#include "tersekv/kv_cache.hpp"
#include "tersekv/policies/snapkv.hpp"
#include "tersekv/policies/streaming_llm.hpp"
#include "tersekv/policies/tova.hpp"
#include "tersekv/policies/weightedkv.hpp"

using support::close;
using support::close_all;
using support::GoldenCase;
using tersekv::Index;

namespace {

/// The prompt of a scores case in one chunk, not yet compressed. Its tensors put the head before
/// the token, which a view reads as it lies.
template <class PolicyType>
tersekv::KVCache<PolicyType> fed(const GoldenCase& golden, const PolicyType& policy) {
  const auto kv_heads = golden.setting<Index>("num_kv_heads");
  const Index q_heads = kv_heads * golden.setting<Index>("group_size");
  const auto dim = golden.setting<Index>("head_dim"), tokens = golden.setting<Index>("length");
  tersekv::KVCache<PolicyType> cache({.num_q_heads = q_heads,
                                      .num_kv_heads = kv_heads,
                                      .head_dim = dim,
                                      .budget = golden.setting<Index>("n_kept")},
                                     policy);
  std::vector<float> out(static_cast<std::size_t>(tokens * q_heads * dim));
  cache.extend(tersekv::hnd_view(golden.floats("q").data.data(), tokens, q_heads, dim),
               tersekv::hnd_view(golden.floats("k").data.data(), tokens, kv_heads, dim),
               tersekv::hnd_view(golden.floats("v").data.data(), tokens, kv_heads, dim),
               tersekv::hnd_view(out.data(), tokens, q_heads, dim),
               {.compress_every = tersekv::kNever});
  return cache;
}

template <class Cache>
std::vector<Index> positions(Cache& cache, Index h) {
  std::vector<Index> result;
  for (const tersekv::Entry& entry : cache.entries(0, h)) result.push_back(entry.position);
  return result;
}

/// Scores of all but the last `skipped` tokens; the golden ones are means over `divisor` numbers
/// of which ours are the sum.
template <class Cache>
std::vector<float> scores(Cache& cache, Index h, Index skipped, double divisor) {
  std::vector<float> result;
  for (const tersekv::Entry& entry : cache.entries(0, h)) {
    result.push_back(static_cast<float>(entry.score / divisor));
  }
  result.erase(result.end() - skipped, result.end());
  return result;
}

void check_streaming(const GoldenCase& golden) {
  auto cache =
      fed(golden, tersekv::make_streaming_llm({.sinks = golden.setting<Index>("streaming/sinks")}));
  cache.compress(0);
  for (Index h = 0; h < golden.setting<Index>("num_kv_heads"); ++h) {
    CHECK(support::same_indices(positions(cache, h), golden.integers("streaming_kept").vector(h)));
  }
}

void check_snapkv(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto window = golden.setting<Index>("snapkv/window");
  auto cache = fed(
      golden,
      tersekv::make_snapkv({.window = window, .kernel = golden.setting<Index>("snapkv/kernel")}));
  cache.compress(0);
  for (Index h = 0; h < golden.setting<Index>("num_kv_heads"); ++h) {
    const auto kept = golden.integers("snapkv_kept").vector(h);
    REQUIRE(support::same_indices(positions(cache, h), kept));
    // Pooled scores exist once a compression has asked for them: those of the survivors remain.
    const auto got = scores(cache, h, window,
                            static_cast<double>(window) * golden.setting<double>("group_size"));
    std::vector<float> want;
    for (std::size_t i = 0; i < got.size(); ++i) {
      want.push_back(golden.floats("snapkv_scores")(h, kept[i]));
    }
    CHECK(close_all(got, want, relative, absolute));
  }
}

/// Average attention is WeightedKV's score.
void check_average_attention(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  auto cache = fed(golden, tersekv::make_weightedkv());
  for (Index h = 0; h < golden.setting<Index>("num_kv_heads"); ++h) {
    CHECK(close_all(scores(cache, h, 0, golden.setting<double>("group_size")),
                    golden.floats("average_attention_scores").vector(h), relative, absolute));
  }
}

void check_tova(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  auto cache = fed(golden, tersekv::make_tova());
  for (Index h = 0; h < golden.setting<Index>("num_kv_heads"); ++h) {
    CHECK(close_all(scores(cache, h, 1, golden.setting<double>("group_size")),
                    golden.floats("tova_scores").vector(h), relative, absolute));
  }
  cache.compress(0);
  for (Index h = 0; h < golden.setting<Index>("num_kv_heads"); ++h) {
    CHECK(support::same_indices(positions(cache, h), golden.integers("tova_kept").vector(h)));
  }
}

}  // namespace

TEST_CASE("baselines agree with the golden scores and kept sets", "[golden]") {
  bool tova = false;
  for (const std::string& name : support::golden_cases("scores_")) {
    INFO(name);
    const GoldenCase golden(name);
    check_streaming(golden);
    check_snapkv(golden);
    check_average_attention(golden);
    if (!golden.has("tova_scores")) continue;
    check_tova(golden);
    tova = true;
  }
  CHECK(tova);
}
