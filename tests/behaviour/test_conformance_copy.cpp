// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <new>
#include <vector>

#include "conformance.hpp"
#include "counting_resource.hpp"
#include "refusal.hpp"

// A sequence that is copied from another goes on as that one would.

namespace {

using namespace conformance;

/// Feeds the tokens to a sequence: a prompt, then one by one.
void talk(AnyCache& cache, Tokens& tokens, Index sequence, Index prompt) {
  extend(cache, tokens.chunk(0, prompt, sequence));
  for (Index t = prompt; t < tokens.count; ++t) extend(cache, tokens.chunk(t, 1, sequence));
}

TEST_CASE("conformance: a copied sequence goes on as its original, and neither minds the other") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(81);
      INFO(random);
      const CacheConfig config = small_config(policy, 3);
      tersekv::PagePool pool, of_twin;
      const auto cache = policy.make(config, {.storage = storage, .pool = &pool});
      const auto twin = policy.make(config, {.storage = storage, .pool = &of_twin});
      // What the copies replace: more than the original, less, and nothing.
      Tokens original(random, config, 45), same = original;
      talk(*cache, original, 0, 40);
      talk(*twin, same, 0, 40);
      Tokens longer(random, config, 60), shorter(random, config, 3);
      extend(*cache, longer.all(1), tersekv::kNever);
      extend(*cache, shorter.all(2));
      for (const Index to : {1, 2}) {
        cache->copy(0, to);
        CHECK(same_state(State(*cache, to), State(*twin, 0)));
      }
      CHECK(lent_pages(pool) == 3 * lent_pages(of_twin));

      Tokens next(random, config, 30), in_copy = next, in_twin = next, other(random, config, 30);
      talk(*cache, other, 2, 10);  // another answer
      talk(*cache, in_copy, 1, 5);
      talk(*twin, in_twin, 0, 5);
      CHECK(same_outputs(in_copy, in_twin));
      CHECK(same_state(State(*cache, 1), State(*twin, 0)));
      talk(*cache, next, 0, 5);
      CHECK(same_outputs(next, in_twin));
      CHECK(same_state(State(*cache, 0), State(*twin, 0)));
    }
  }
}

TEST_CASE("conformance: what was appended before a copy is compressed or taken back after it") {
  FOR_EACH_POLICY(policy) {
    support::Random random(82);
    const CacheConfig config = small_config(policy, 2);
    Tokens tokens(random, config, 37);
    const auto cache = policy.make(config, {});
    const Chunk<float> all = tokens.all();
    cache->append(0, tokens.chunk(0, 30));
    cache->append(0, tokens.chunk(30, 7));
    cache->copy(0, 1);
    for (const Index s : {0, 1}) {
      cache->rewind(s, 2);
      cache->observe(s, all.q.rows(30, 5));
      cache->compress(s);
    }
    CHECK(same_state(State(*cache, 1), State(*cache, 0)));
  }
}

TEST_CASE("conformance: a sequence copied to itself is as it was, and none that is not there") {
  FOR_EACH_POLICY(policy) {
    support::Random random(83);
    const CacheConfig config = small_config(policy, 2);
    Tokens tokens(random, config, 30);
    const auto cache = policy.make(config, {});
    extend(*cache, tokens.all(1));
    const State before(*cache, 1);
    cache->copy(1, 1);
    CHECK(support::refused([&] { cache->copy(1, 2); }, {"sequence: expected 0 to 1, got 2"}));
    CHECK(support::refused([&] { cache->copy(-1, 1); }, {"sequence: expected 0 to 1, got -1"}));
    CHECK(same_state(State(*cache, 1), before));
    cache->copy(0, 1);  // which is empty
    CHECK(cache->tokens_seen(1) == 0);
    CHECK(cache->length(1, 0) == 0);
    CHECK(cache->memory().keys == 0);
  }
}

TEST_CASE("conformance: a copy that gets no memory changes nothing") {
  FOR_EACH_POLICY(policy) {
    bool done = false;
    for (Index successes = 0; !done; ++successes) {
      REQUIRE(successes < 50);
      CountingResource resource;
      support::Random random(84);
      const CacheConfig config = small_config(policy, 2);
      Tokens tokens(random, config, 80), few(random, config, 2);
      const auto cache = policy.make(config, {.resource = &resource});
      extend(*cache, tokens.all(0), tersekv::kNever);
      extend(*cache, few.all(1));
      cache->pool().trim();
      const State before(*cache, 1);
      const Index lent_before = lent_pages(cache->pool());
      resource.fail_after(successes);
      try {
        cache->copy(0, 1);
        done = true;
        CHECK(successes > 0);
      } catch (const std::bad_alloc&) {
        CHECK(same_state(State(*cache, 1), before));
        CHECK(lent_pages(cache->pool()) == lent_before);
        resource.fail_after(CountingResource::kNever);
        cache->copy(0, 1);
      }
      CHECK(same_state(State(*cache, 1), State(*cache, 0)));
      CHECK(cache->bytes() == resource.bytes());
    }
  }
}

}  // namespace
