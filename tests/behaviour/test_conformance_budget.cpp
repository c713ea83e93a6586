// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "conformance.hpp"

// What a policy may hold, and when.

namespace {

using namespace conformance;

/// Entries a head may hold: `singles` tokens came one at a time since the last chunk of several.
Index most(const PolicyCase& policy, Index budget, Index seen, Index singles) {
  if (!policy.has_budget || budget == tersekv::kUnlimited) return seen;
  return budget + policy.beyond + (policy.grows_while_decoding ? singles : 0);
}

TEST_CASE("conformance: after every call a head is within its budget") {
  FOR_EACH_POLICY(policy) {
    for (const Index budget : {policy.budget, policy.other_budget}) {
      support::Random random(11);
      CacheConfig config = small_config(policy);
      config.budget = budget;
      const auto cache = policy.make(config, {});
      Tokens tokens(random, config, total(kTalk));
      Index singles = 0, fullest = 0;
      feed(*cache, tokens, kTalk, 0, [&](Index seen, Index size) {
        singles = size == 1 ? singles + 1 : 0;
        CHECK(cache->tokens_seen(0) == seen);
        for (Index h = 0; h < config.num_kv_heads; ++h) {
          CHECK(cache->length(0, h) <= most(policy, budget, seen, singles));
          fullest = std::max(fullest, cache->length(0, h));
        }
      });
      if (policy.has_budget) CHECK(fullest >= budget);  // it is used, too
    }
  }
}

TEST_CASE("conformance: a long prompt in chunks never holds more than budget + chunk") {
  FOR_EACH_POLICY(policy) {
    support::Random random(12);
    const CacheConfig config = small_config(policy);
    // Together whole pages, so that one entry too many takes one more.
    const Index at_most = most(policy, policy.budget, 200, 0), page = config.page_size;
    const Index chunk = at_most < 200 ? 2 * page - at_most % page : 20;
    Tokens tokens(random, config, 200);
    const auto pages = [&](Index entries) {
      return config.num_kv_heads * ((entries + page - 1) / page);
    };
    // The pool of its own never gives a page back, so that its size is the peak.
    const Index bound = pages(std::min<Index>(200, at_most + chunk));
    const auto in_calls = policy.make(config, {});
    std::vector<Index> calls(static_cast<std::size_t>(200 / chunk), chunk);
    if (200 % chunk > 0) calls.push_back(200 % chunk);
    feed(*in_calls, tokens, calls);
    CHECK(in_calls->pool().pages() <= bound);
    const auto in_one_call = policy.make(config, {});
    extend(*in_one_call, tokens.all(), chunk);
    CHECK(in_one_call->pool().pages() <= bound);
    CHECK(same_state(*in_one_call, *in_calls));
  }
}

TEST_CASE("conformance: compress_every = kNever keeps everything until compress is called") {
  FOR_EACH_POLICY(policy) {
    support::Random random(13);
    const CacheConfig config = small_config(policy);
    const auto cache = policy.make(config, {});
    Tokens tokens(random, config, 60);
    extend(*cache, tokens.chunk(0, 50), tersekv::kNever);
    extend(*cache, tokens.chunk(50, 10), tersekv::kNever);
    for (Index h = 0; h < config.num_kv_heads; ++h) {
      CHECK(cache->length(0, h) == 60);
    }
    cache->compress(0);
    for (Index h = 0; h < config.num_kv_heads; ++h) {
      CHECK(cache->length(0, h) <= most(policy, policy.budget, 60, 0));
    }
  }
}

TEST_CASE("conformance: every head has a budget of its own, as if it were alone") {
  FOR_EACH_POLICY(policy) {
    support::Random random(14);
    CacheConfig config = small_config(policy);
    config.num_kv_heads = 3;
    config.num_q_heads = 9;
    const Index budgets[] = {policy.budget, policy.other_budget, tersekv::kUnlimited};
    config.budget = tersekv::Budget(std::span<const Index>(budgets));
    const auto mixed = policy.make(config, {});
    Tokens tokens(random, config, total(kTalk));
    feed(*mixed, tokens);
    for (Index h = 0; h < 3; ++h) {
      CAPTURE(h);
      config.budget = budgets[h];
      const auto uniform = policy.make(config, {});
      Tokens same = tokens;
      feed(*uniform, same);
      const State got(*mixed, 0), want(*uniform, 0);
      State one = want, other = want;
      one.heads = {got.heads[static_cast<std::size_t>(h)]};
      other.heads = {want.heads[static_cast<std::size_t>(h)]};
      CHECK(same_state(one, other));
      if (policy.has_budget && h == 2) {
        CHECK(mixed->length(0, h) == tokens.count);
        CHECK(mixed->counts(0, h).evictions + mixed->counts(0, h).merges == 0);
      }
    }
  }
}

}  // namespace
