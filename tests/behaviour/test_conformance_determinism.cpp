// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <utility>

#include "conformance.hpp"

// Bits that depend on nothing but a sequence's own tokens.

namespace {

using namespace conformance;

TEST_CASE("conformance: two runs give the same bits") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(31);
      const CacheConfig config = small_config(policy);
      Tokens once(random, config, total(kTalk)), twice = once;
      const auto first = policy.make(config, {.storage = storage});
      const auto second = policy.make(config, {.storage = storage});
      feed(*first, once);
      feed(*second, twice);
      CHECK(same_outputs(once, twice));
      CHECK(same_state(*first, *second));
    }
  }
}

TEST_CASE("conformance: a cleared cache is as good as new") {
  FOR_EACH_POLICY(policy) {
    support::Random random(32);
    const CacheConfig config = small_config(policy, 2);
    Tokens past(random, config, total(kTalk)), other = past;
    // One by one from the first token on: a count that was not reset would show.
    std::vector<Index> sizes(33, 1);
    sizes.insert(sizes.end(), kTalk.begin(), kTalk.end());
    Tokens again(random, config, total(sizes)), fresh = again;
    const auto used = policy.make(config, {});
    const auto neighbour = policy.make(config, {});
    feed(*used, past, kTalk, 0);
    feed(*used, other, kTalk, 1);
    feed(*neighbour, other, kTalk, 1);
    SECTION("one sequence, and the other one stays") {
      used->clear(0);
      CHECK(same_state(*used, *neighbour, 1));
    }
    SECTION("all") {
      used->clear();
      CHECK(used->tokens_seen(1) == 0);
      CHECK(used->length(1, 0) == 0);
      CHECK(used->total_counts().evictions + used->total_counts().merges == 0);
    }
    CHECK(used->tokens_seen(0) == 0);
    CHECK(used->length(0, 1) == 0);
    const auto unused = policy.make(config, {});
    CHECK(same_state(*used, *unused));
    feed(*used, again, sizes);
    feed(*unused, fresh, sizes);
    CHECK(same_outputs(again, fresh));
    CHECK(same_state(*used, *unused));
  }
}

/// Three sequences, a batch of unequal numbers of tokens at each step, none among them.
constexpr Index kSteps[][3] = {{37, 0, 5}, {1, 1, 1}, {2, 40, 0}, {0, 1, 30}, {1, 7, 1}, {1, 1, 1}};

void feed_batches(AnyCache& cache, std::vector<Tokens>& tokens) {
  std::vector<Index> at(3, 0);
  for (const auto& step : kSteps) {
    std::vector<Chunk<float>> chunks;
    for (const Index s : {2, 0, 1}) {
      const auto i = static_cast<std::size_t>(s);
      chunks.push_back(tokens[i].chunk(at[i], step[s], s));
      at[i] += step[s];
    }
    cache.extend(chunks);
  }
}
std::vector<Tokens> three_sequences(const CacheConfig& config) {
  support::Random random(33);
  std::vector<Tokens> tokens;
  for (int s = 0; s < 3; ++s) {
    Index count = 0;
    for (const auto& step : kSteps) count += step[s];
    tokens.emplace_back(random, config, count);
  }
  return tokens;
}

TEST_CASE("conformance: a batch of unequal chunks equals single runs") {
  FOR_EACH_POLICY(policy) {
    const CacheConfig config = small_config(policy, 3);
    std::vector<Tokens> together = three_sequences(config), apart = together;
    const auto batch = policy.make(config, {});
    feed_batches(*batch, together);
    for (Index s = 0; s < 3; ++s) {
      CAPTURE(s);
      Tokens& own = apart[static_cast<std::size_t>(s)];
      std::vector<Index> sizes;
      for (const auto& step : kSteps) sizes.push_back(step[s]);
      const auto single = policy.make(small_config(policy), {});
      feed(*single, own, sizes);
      CHECK(same_outputs(together[static_cast<std::size_t>(s)], own));
      CHECK(same_state(State(*batch, s), State(*single, 0)));
    }
  }
}

TEST_CASE("conformance: every executor gives the same bits") {
  FOR_EACH_POLICY(policy) {
    const CacheConfig config = small_config(policy, 3);
    std::vector<Tokens> want = three_sequences(config);
    const auto serial = policy.make(config, {});
    feed_batches(*serial, want);
    for (const Runs runs : {Runs::openmp, Runs::shuffled}) {
      std::vector<Tokens> got = three_sequences(config);
      const auto cache = policy.make(config, {.runs = runs});
      feed_batches(*cache, got);
      for (std::size_t s = 0; s < 3; ++s) {
        CHECK(same_outputs(got[s], want[s]));
        CHECK(same_state(*cache, *serial, static_cast<Index>(s)));
      }
    }
  }
}

TEST_CASE("conformance: a clone, on whatever pool, equals its original and goes its own way") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(34);
      const CacheConfig config = small_config(policy);
      Tokens tokens(random, config, total(kTalk) + 20), same = tokens, other = tokens;
      const auto original = policy.make(config, {.storage = storage});
      const auto twin = policy.make(config, {.storage = storage});
      feed(*original, tokens);
      feed(*twin, same);
      tersekv::PagePool pool;
      const auto clone = original->clone(), elsewhere = original->clone(pool);
      CHECK(&elsewhere->pool() == &pool);
      Tokens again = other;
      const std::pair<AnyCache*, Tokens*> copies[] = {{clone.get(), &other},
                                                      {elsewhere.get(), &again}};
      for (const auto& [copy, own] : copies) {
        CHECK(same_state(*copy, *original));
        extend(*copy, own->chunk(total(kTalk), 20));
        CHECK(same_state(*original, *twin));
      }
      extend(*original, tokens.chunk(total(kTalk), 20));
      const auto from = (other.out.size() / static_cast<std::size_t>(other.count)) *
                        static_cast<std::size_t>(total(kTalk));
      const auto latest = [&](const Tokens& t) { return std::span(t.out).subspan(from); };
      for (const auto& [copy, own] : copies) {
        CHECK(same_state(*copy, *original));
        CHECK(same_bits("out", latest(*own), latest(tokens)));
      }
    }
  }
}

TEST_CASE("conformance: every verb works on a clone that has not been extended") {
  FOR_EACH_POLICY(policy) {
    support::Random random(35);
    const CacheConfig config = small_config(policy);
    Tokens tokens(random, config, 50), same = tokens;
    const auto original = policy.make(config, {});
    extend(*original, tokens.chunk(0, 45), tersekv::kNever);
    const auto clone = original->clone();
    for (AnyCache* cache : {original.get(), clone.get()}) {
      Tokens& own = cache == clone.get() ? same : tokens;
      const Chunk<float> last = own.chunk(40, 5);
      cache->attend(0, last.q, last.out, {.lse = last.lse});
      cache->observe(0, last.q);
      cache->compress(0);
    }
    CHECK(same_state(*clone, *original));
    const auto compressed = clone->clone();
    compressed->compress(0);
    CHECK(compressed->length(0, 0) == clone->length(0, 0));
  }
}

TEST_CASE("conformance: caches that share a pool do not disturb each other") {
  FOR_EACH_POLICY(policy) {
    support::Random random(36);
    const CacheConfig config = small_config(policy);
    Tokens one(random, config, total(kTalk)), two(random, config, total(kTalk));
    Tokens one_alone = one, two_alone = two;
    tersekv::PagePool pool;
    {
      const auto first = policy.make(config, {.pool = &pool});
      const auto second = policy.make(config, {.pool = &pool});
      Index at = 0;
      for (const Index size : kTalk) {  // in turns, so that pages wander
        extend(*first, one.chunk(at, size));
        extend(*second, two.chunk(at, size));
        at += size;
      }
      const auto first_alone = policy.make(config, {});
      const auto second_alone = policy.make(config, {});
      feed(*first_alone, one_alone);
      feed(*second_alone, two_alone);
      CHECK(same_outputs(one, one_alone));
      CHECK(same_outputs(two, two_alone));
      CHECK(same_state(*first, *first_alone));
      CHECK(same_state(*second, *second_alone));
      const State before(*second, 0);
      first->clear();
      CHECK(same_state(State(*second, 0), before));
    }
    CHECK(pool.idle_pages() == pool.pages());  // all came back
    pool.trim();
    CHECK(pool.bytes() == 0);
  }
}

}  // namespace
