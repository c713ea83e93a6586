// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include "conformance.hpp"
#include "refusal.hpp"

// Tokens that are taken back were never there.

namespace {

using namespace conformance;

/// Appends the tokens, attends to them, and takes all but the first `right` back.
void guess(AnyCache& cache, Tokens& tokens, Index right) {
  const Chunk<float> all = tokens.all();
  cache.append(0, all);
  cache.attend(0, all.q, all.out, {.lse = all.lse});
  cache.rewind(0, tokens.count - right);
  if (right > 0) {
    cache.observe(0, tokens.chunk(0, right).q);
    cache.compress(0);
  }
}

TEST_CASE("conformance: guessed tokens that are taken back leave nothing") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(61);
      const CacheConfig config = small_config(policy);
      // Of as many guesses so many are right; a prompt beyond the budget, one below it.
      constexpr Index kGuesses[][2] = {{40, 38}, {5, 2}, {4, 1}, {3, 0},  {1, 0},
                                       {5, 5},   {9, 3}, {2, 1}, {30, 1}, {4, 3}};
      tersekv::PagePool of_plain, of_rewound;
      const auto plain = policy.make(config, {.storage = storage, .pool = &of_plain});
      const auto rewound = policy.make(config, {.storage = storage, .pool = &of_rewound});
      Index at = 0;
      for (const auto& [guessed, kept] : kGuesses) {
        Tokens guesses(random, config, guessed), same = guesses;
        if (kept > 0) extend(*plain, same.chunk(0, kept));
        guess(*rewound, guesses, kept);
        at += kept;
        const auto outs =
            same.out.size() / static_cast<std::size_t>(guessed) * static_cast<std::size_t>(kept);
        CHECK(
            same_bits("out", std::span(guesses.out).first(outs), std::span(same.out).first(outs)));
        REQUIRE(same_state(*rewound, *plain));
        CHECK(rewound->tokens_seen(0) == at);
      }
      CHECK(lent_pages(of_rewound) == lent_pages(of_plain));
    }
  }
}

TEST_CASE("conformance: an append that is taken back whole leaves the one before it the latest") {
  FOR_EACH_POLICY(policy) {
    support::Random random(63);
    const CacheConfig config = small_config(policy);
    Tokens prompt(random, config, 40), guesses(random, config, 3);
    const auto plain = policy.make(config, {}), rewound = policy.make(config, {});
    for (const auto* cache : {&plain, &rewound}) (*cache)->append(0, prompt.all());
    rewound->append(0, guesses.all());
    rewound->rewind(0, 1);
    rewound->rewind(0, 2);
    for (const auto* cache : {&plain, &rewound}) {
      (*cache)->observe(0, prompt.chunk(39, 1).q);  // alone, but of a prompt
      (*cache)->compress(0);
    }
    CHECK(same_state(*rewound, *plain));
  }
}

TEST_CASE("conformance: only the latest append may be taken back, and no compressed token") {
  FOR_EACH_POLICY(policy) {
    support::Random random(62);
    const CacheConfig config = small_config(policy, 2);
    Tokens tokens(random, config, 20);
    const auto cache = policy.make(config, {});
    const auto refused = [&](Index sequence, Index count, const char* message) {
      const State before(*cache, 0);
      CHECK(support::refused([&] { cache->rewind(sequence, count); }, {message}));
      CHECK(same_state(State(*cache, 0), before));
    };
    refused(0, 1, "tokens to take back: expected 0 to 0");
    cache->append(0, tokens.chunk(0, 7));
    cache->append(0, tokens.chunk(7, 3));
    refused(0, 4, "expected 0 to 3, what is left of the latest append");
    refused(0, -1, "got -1");
    refused(2, 1, "sequence: expected 0 to 1, got 2");
    refused(1, 1, "expected 0 to 0");
    cache->rewind(0, 0);
    cache->rewind(0, 2);
    cache->rewind(0, 1);
    CHECK(cache->tokens_seen(0) == 7);
    refused(0, 1, "expected 0 to 0");
    cache->append(0, tokens.chunk(10, 2));
    cache->compress(0);
    refused(0, 1, "expected 0 to 0");
  }
}

}  // namespace
