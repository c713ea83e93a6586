// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include "conformance.hpp"

// `extend` and the verbs beneath it are one and the same.

namespace {

using namespace conformance;

TEST_CASE("conformance: a chunk with compress_every = 1 equals one token at a time") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(41);
      const CacheConfig config = small_config(policy);
      Tokens chunk(random, config, 70), single = chunk;
      const auto at_once = policy.make(config, {.storage = storage});
      extend(*at_once, chunk.chunk(0, 55), 1);
      extend(*at_once, chunk.chunk(55, 15), 1);
      const auto one_by_one = policy.make(config, {.storage = storage});
      feed(*one_by_one, single, std::vector<Index>(70, 1));
      CHECK(same_outputs(chunk, single));
      CHECK(same_state(*at_once, *one_by_one));
    }
  }
}

TEST_CASE("conformance: compress_every = n equals chunks of n") {
  FOR_EACH_POLICY(policy) {
    support::Random random(42);
    const CacheConfig config = small_config(policy);
    Tokens chunk(random, config, 64), parts = chunk;
    const auto at_once = policy.make(config, {});
    extend(*at_once, chunk.all(), 15);
    const auto by_parts = policy.make(config, {});
    feed(*by_parts, parts, {15, 15, 15, 15, 4});
    CHECK(same_outputs(chunk, parts));
    CHECK(same_state(*at_once, *by_parts));
  }
}

TEST_CASE("conformance: append, attend, observe, compress equal extend") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      for (const bool rows : {false, true}) {
        if (rows && !policy.takes_rows) continue;
        CAPTURE(rows);
        support::Random random(43);
        const CacheConfig config = small_config(policy);
        Tokens extended(random, config, total(kTalk)), handled = extended;
        const auto one_verb = policy.make(config, {.storage = storage});
        feed(*one_verb, extended);
        const auto four_verbs = policy.make(config, {.storage = storage});
        Index at = 0;
        for (const Index size : kTalk) {
          four_verbs->append(0, handled.chunk(at, size));
          attend_and_compress(*four_verbs, handled.chunk(at, size), rows);
          at += size;
        }
        CHECK(same_outputs(handled, extended));
        CHECK(same_state(*four_verbs, *one_verb));
      }
    }
  }
}

TEST_CASE("conformance: several appends before one compression equal one") {
  FOR_EACH_POLICY(policy) {
    support::Random random(44);
    const CacheConfig config = small_config(policy);
    Tokens together(random, config, 60), parts = together;
    const auto at_once = policy.make(config, {});
    extend(*at_once, together.all());
    const auto in_parts = policy.make(config, {});
    for (const Index first : {0, 20, 40}) in_parts->append(0, parts.chunk(first, 20));
    in_parts->attend(0, parts.all().q, parts.all().out, {.lse = parts.lse.data()});
    in_parts->observe(0, parts.all().q);
    in_parts->compress(0);
    CHECK(same_outputs(parts, together));
    CHECK(same_state(*in_parts, *at_once));
  }
}

TEST_CASE("conformance: only the last queries need be observed where a policy asks for no more") {
  FOR_EACH_POLICY(policy) {
    if (policy.observes_every_row) continue;
    support::Random random(45);
    const CacheConfig config = small_config(policy);
    Tokens all(random, config, 60), last = all;
    const auto extended = policy.make(config, {});
    extend(*extended, all.all());
    const auto observed = policy.make(config, {});
    observed->append(0, last.all());
    observed->observe(0, last.chunk(28, 32).q);  // no window here is longer than 32
    observed->compress(0);
    CHECK(same_state(*observed, *extended));
  }
}

TEST_CASE("conformance: attend changes nothing") {
  FOR_EACH_POLICY(policy) {
    support::Random random(46);
    const CacheConfig config = small_config(policy);
    Tokens tokens(random, config, total(kTalk));
    const auto cache = policy.make(config, {});
    feed(*cache, tokens);
    const State before(*cache, 0);
    const Chunk<float> last = tokens.chunk(0, 1);
    cache->attend(0, last.q, last.out, {});
    CHECK(same_state(State(*cache, 0), before));
  }
}

TEST_CASE("conformance: attend hands out the rows it was asked for, whatever the policy observes") {
  FOR_EACH_POLICY(policy) {
    support::Random random(47);
    const CacheConfig config = small_config(policy);
    Tokens tokens(random, config, 12);
    const auto cache = policy.make(config, {});
    cache->append(0, tokens.all());
    std::vector<float> rows(2 * 12, -1.0f);  // the last token's, per KV head
    const Chunk<float> last = tokens.chunk(11, 1);
    cache->attend(0, last.q, last.out,
                  {.rows = {.data = rows.data(), .rows = 1, .row_stride = 24, .head_stride = 12}});
    for (int h = 0; h < 2; ++h) {
      double sum = 0;
      for (int i = 0; i < 12; ++i) sum += static_cast<double>(rows[h * 12 + i]);
      CHECK(support::close(sum, 3, 1e-5, 0));  // the group's three heads give 1 each
    }
  }
}

}  // namespace
