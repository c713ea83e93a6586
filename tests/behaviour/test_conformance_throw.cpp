// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <new>
#include <stdexcept>

#include "conformance.hpp"
#include "counting_resource.hpp"
#include "refusal.hpp"

// A call that throws changes nothing.

namespace {

using namespace conformance;
using support::kInfinity;
using support::kNaN;

/// One good batch for sequences 0 and 1, and what may be wrong with it.
struct Batch {
  Batch(support::Random& random, const CacheConfig& config)
      : tokens{Tokens(random, config, 5), Tokens(random, config, 30)} {
    for (const Index s : {0, 1}) chunks.push_back(tokens[static_cast<std::size_t>(s)].all(s));
  }
  std::vector<Tokens> tokens;
  std::vector<Chunk<float>> chunks;
  Index compress_every = 0;
};
struct Fault {
  const char* what;
  std::function<void(Batch&)> commit;
};

// Always in the last chunk: what came before it must not have been done.
const std::vector<Fault> kFaults = {
    {"NaN in k", [](Batch& b) { b.tokens[1].k.back() = kNaN; }},
    {"infinity in v", [](Batch& b) { b.tokens[1].v.back() = -kInfinity; }},
    {"NaN in q", [](Batch& b) { b.tokens[1].q.back() = kNaN; }},
    {"a key beyond the range", [](Batch& b) { b.tokens[1].k.back() = 2e15f; }},
    {"fewer values than keys", [](Batch& b) { --b.chunks[1].v.tokens; }},
    {"fewer queries than keys", [](Batch& b) { --b.chunks[1].q.tokens; }},
    {"outputs of too many heads", [](Batch& b) { ++b.chunks[1].out.heads; }},
    {"a short head", [](Batch& b) { --b.chunks[1].k.head_dim; }},
    {"no keys", [](Batch& b) { b.chunks[1].k.data = nullptr; }},
    {"no outputs", [](Batch& b) { b.chunks[1].out.data = nullptr; }},
    {"outputs over the keys", [](Batch& b) { b.chunks[1].k.data = b.chunks[1].out.data; }},
    {"a negative count", [](Batch& b) { b.chunks[1].k.tokens = -1; }},
    {"no such sequence", [](Batch& b) { b.chunks[1].sequence = 2; }},
    {"a negative sequence", [](Batch& b) { b.chunks[1].sequence = -1; }},
    {"a sequence twice", [](Batch& b) { b.chunks[1].sequence = 0; }},
    {"compress_every", [](Batch& b) { b.compress_every = -2; }},
};
const std::vector<Fault> kScoreFaults = {
    {"no scores", [](Batch& b) { b.chunks[1].token_scores = {}; }},
    {"NaN in scores", [](Batch& b) { b.tokens[1].scores.back() = kNaN; }},
};

/// Two caches with the same past: one is mistreated, the other is not.
struct Twins {
  Twins(const PolicyCase& policy, const Setup& setup)
      : config(small_config(policy, 2)),
        one(policy.make(config, setup)),
        other(policy.make(config, {})) {
    for (const Index s : {0, 1}) {
      Tokens tokens(random, config, total(kTalk)), same = tokens;
      feed(*one, tokens, kTalk, s);
      feed(*other, same, kTalk, s);
    }
  }
  /// The same entries, and the same future.
  void check_still_equal() {
    for (const Index s : {0, 1}) {
      CHECK(same_state(*one, *other, s));
      Tokens tokens(random, config, 7), same = tokens;
      feed(*one, tokens, {6, 1}, s);
      feed(*other, same, {6, 1}, s);
      CHECK(same_outputs(tokens, same));
      CHECK(same_state(*one, *other, s));
    }
  }
  support::Random random{51};
  CacheConfig config;
  std::unique_ptr<AnyCache> one, other;
};

TEST_CASE("conformance: a call that is refused changes nothing") {
  FOR_EACH_POLICY(policy) {
    std::vector<Fault> faults = kFaults;
    if (policy.needs_scores) faults.insert(faults.end(), kScoreFaults.begin(), kScoreFaults.end());
    Twins twins(policy, {});
    for (const Fault& fault : faults) {
      CAPTURE(fault.what);
      Batch batch(twins.random, twins.config);
      fault.commit(batch);
      const tersekv::MemoryUsage before = twins.one->memory();
      const std::vector<float> out = batch.tokens[0].out;
      CHECK_THROWS_AS(twins.one->extend(batch.chunks, {.compress_every = batch.compress_every}),
                      std::invalid_argument);
      CHECK(same_bytes(twins.one->memory(), before));
      CHECK(same_bits("out", batch.tokens[0].out, out));
      for (const Index s : {0, 1}) CHECK(same_state(*twins.one, *twins.other, s));
    }
    twins.check_still_equal();
  }
}

TEST_CASE("conformance: the other verbs, refused, change nothing either") {
  FOR_EACH_POLICY(policy) {
    Twins twins(policy, {});
    const tersekv::MemoryUsage before = twins.one->memory();
    Tokens tokens(twins.random, twins.config, 3);
    Chunk<float> bad = tokens.all();
    CHECK_THROWS_AS(twins.one->append(2, bad), std::invalid_argument);
    CHECK_THROWS_AS(twins.one->attend(0, bad.q, bad.out, {}), std::invalid_argument);  // not fresh
    CHECK_THROWS_AS(twins.one->attend(0, bad.q.rows(0, 1), bad.out, {}), std::invalid_argument);
    CHECK_THROWS_AS(twins.one->observe(0, bad.q), std::invalid_argument);
    CHECK_THROWS_AS(twins.one->observe(2, bad.q.rows(0, 1)), std::invalid_argument);
    if (policy.takes_rows) {
      CHECK_THROWS_AS(twins.one->observe(0, tersekv::AttentionRows<const float>{.rows = 1}),
                      std::invalid_argument);
      CHECK_THROWS_AS(twins.one->observe(0, tersekv::AttentionRows<const float>{.rows = -1}),
                      std::invalid_argument);
    }
    CHECK_THROWS_AS(twins.one->compress(-1), std::invalid_argument);
    CHECK_THROWS_AS(twins.one->clear(2), std::invalid_argument);
    tokens.v.front() = kNaN;
    CHECK_THROWS_AS(twins.one->append(0, bad), std::invalid_argument);
    CHECK(same_bytes(twins.one->memory(), before));
    twins.check_still_equal();
  }
}

/// round(twins, resource, successes) says whether its call went through, with one allocation more
/// to succeed each time, until it does. Returns how many did not. Nothing leaks, and the twins are
/// equal after each.
template <class Round>
Index failures_until_done(const PolicyCase& policy, Runs runs, Round&& round) {
  for (Index successes = 0;; ++successes) {
    CAPTURE(successes);
    REQUIRE(successes < 100);
    CountingResource resource;
    bool done = false;
    {
      Twins twins(policy, {.runs = runs, .resource = &resource});
      twins.one->pool().trim();
      done = round(twins, resource, successes);
      twins.check_still_equal();
    }
    CHECK(resource.bytes() == 0);
    CHECK(resource.sound());
    if (done) return successes;
  }
}

/// Whether call(cache) goes through for one twin; the other then follows.
template <class Call>
bool goes_through(Twins& twins, CountingResource& resource, Index successes, Call&& call) {
  resource.fail_after(successes);
  bool done = false;
  try {
    call(*twins.one);
    done = true;
    call(*twins.other);
  } catch (const std::bad_alloc&) {
  }
  resource.fail_after(CountingResource::kNever);
  return done;
}

TEST_CASE("conformance: whichever allocation fails, the cache is as it was") {
  FOR_EACH_POLICY(policy) {
    const auto round = [](Twins& twins, CountingResource& resource, Index successes) {
      Batch batch(twins.random, twins.config);
      batch.tokens[1] = Tokens(twins.random, twins.config, 150);
      batch.chunks[1] = batch.tokens[1].all(1);
      const tersekv::MemoryUsage before = twins.one->memory();
      const bool done = goes_through(twins, resource, successes,
                                     [&](AnyCache& cache) { cache.extend(batch.chunks); });
      CHECK(twins.one->bytes() == resource.bytes());
      if (!done) {  // pages lent in vain are idle now, and what lies in the others is what was
        twins.one->pool().trim();
        const tersekv::MemoryUsage after = twins.one->memory();
        CHECK(after.total() - after.bookkeeping - after.workspace ==
              before.total() - before.bookkeeping - before.workspace);
      }
      return done;
    };
    CHECK(failures_until_done(policy, Runs::shuffled, round) > 10);
  }
}

TEST_CASE("conformance: whichever allocation fails, no head has half of an append") {
  FOR_EACH_POLICY(policy) {
    const auto round = [](Twins& twins, CountingResource& resource, Index successes) {
      Tokens tokens(twins.random, twins.config, 40);
      const Index lent = lent_pages(twins.one->pool());
      const bool done = goes_through(twins, resource, successes,
                                     [&](AnyCache& cache) { cache.append(0, tokens.all()); });
      if (!done) CHECK(lent_pages(twins.one->pool()) == lent);
      return done;
    };
    CHECK(failures_until_done(policy, Runs::serially, round) > 3);
  }
}

TEST_CASE("conformance: whichever allocation fails, making and cloning a cache leak nothing") {
  FOR_EACH_POLICY(policy) {
    CountingResource resource;
    const CacheConfig config = small_config(policy);
    bool done = false;
    for (Index successes = 0; !done; ++successes) {
      resource.fail_after(successes);
      try {
        const auto cache = policy.make(config, {.runs = Runs::shuffled, .resource = &resource});
        done = true;
        CHECK(successes > 0);
      } catch (const std::bad_alloc&) {
      }
      CHECK(resource.bytes() == 0);
    }
    resource.fail_after(CountingResource::kNever);
    Twins twins(policy, {.resource = &resource});
    const Index held = resource.bytes();
    done = false;
    for (Index successes = 0; !done; ++successes) {
      resource.fail_after(successes);
      try {
        const auto clone = twins.one->clone();
        done = true;
        CHECK(successes > 3);
      } catch (const std::bad_alloc&) {
      }
      CHECK(resource.bytes() == held);
    }
    resource.fail_after(CountingResource::kNever);
    twins.check_still_equal();
  }
}

}  // namespace
