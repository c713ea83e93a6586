// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <string>
#include <vector>

#include "../support/compare.hpp"
#include "h2o.hpp"
#include "keepkv.hpp"
#include "kvzap.hpp"
#include "morphkv.hpp"
#include "random_tokens.hpp"
#include "snapkv.hpp"
#include "streaming_llm.hpp"
#include "tova.hpp"
#include "weightedkv.hpp"
#include "zsmerge.hpp"

// What the replay driver promises, whatever the policy.

using namespace reference;

namespace {

struct Subject {
  std::string name;
  std::function<Head()> make;
  Integer budget;         // 0: none
  bool conserves_weight;  // weights sum to the number of tokens seen
};

std::vector<Subject> subjects() {
  return {
      {"full", [] { return Head(std::make_shared<Full>()); }, 0, true},
      {"streaming_llm", [] { return make_head<StreamingLLM>({.budget = 9}); }, 9, false},
      {"h2o", [] { return make_head<H2O>({.budget = 9}); }, 9, false},
      {"tova", [] { return make_head<TOVA>({.budget = 9}); }, 9, false},
      {"snapkv", [] { return make_head<SnapKV>({.budget = 9, .window = 4}); }, 0, false},
      {"zsmerge", [] { return make_head<ZSMerge>({.budget = 9}); }, 9, true},
      {"weightedkv", [] { return make_head<WeightedKV>({.budget = 9}); }, 9, false},
      {"morphkv", [] { return make_head<MorphKV>({.budget = 9, .recent = 4}); }, 9, false},
      {"keepkv victim", [] { return make_head<KeepKV>({.budget = 9}); }, 9, true},
      {"keepkv pair",
       [] {
         return make_head<KeepKV>({.budget = 9,
                                   .decay = 0.9,
                                   .selector = KeepKVSelector::pair,
                                   .key_rule = KeyRule::scale});
       },
       9, true},
      {"kvzap", [] { return make_head<KVzap>({.threshold = 0, .window = 5}); }, 0, false},
  };
}

std::vector<Token> scored_tokens(std::uint64_t seed, Integer count) {
  support::Random random(seed);
  auto tokens = random_tokens(random, count, 3, 6);
  for (Token& token : tokens) token.score = random.normal();
  return tokens;
}

void check_same(const Head& a, const Head& b) {
  REQUIRE(a.positions() == b.positions());
  for (std::size_t i = 0; i < a.entries().size(); ++i) {
    CHECK(a.entries()[i].key == b.entries()[i].key);
    CHECK(a.entries()[i].value == b.entries()[i].value);
    CHECK(a.entries()[i].weight == b.entries()[i].weight);
  }
  REQUIRE(a.outputs().size() == b.outputs().size());
  for (std::size_t t = 0; t < a.outputs().size(); ++t) {
    CHECK(a.outputs()[t].outputs == b.outputs()[t].outputs);
    CHECK(a.outputs()[t].lse == b.outputs()[t].lse);
  }
}

}  // namespace

TEST_CASE("reference replays are the same in one call with compress_every as in many calls",
          "[reference]") {
  for (const Subject& subject : subjects()) {
    for (Integer every : {1, 4}) {
      INFO(subject.name << ", compress_every " << every);
      const auto tokens = scored_tokens(5, 40);
      Head at_once = subject.make(), in_calls = subject.make(), by_hand = subject.make();
      at_once.extend(tokens, every);
      for (auto begin = tokens.begin(); begin != tokens.end(); begin += every) {
        in_calls.extend({begin, begin + every});
        by_hand.extend({begin, begin + every}, kNever);
        by_hand.compress();
      }
      check_same(at_once, in_calls);
      check_same(at_once, by_hand);
    }
  }
}

TEST_CASE("reference replays keep budget, weights and the newest token", "[reference]") {
  for (const Subject& subject : subjects()) {
    support::Random random(17);
    Head head = subject.make();
    for (std::uint64_t call = 0; call < 25; ++call) {
      const Integer chunk = random.integer(1, 13);
      INFO(subject.name << ", call " << call << ", chunk " << chunk);
      const auto outputs = head.extend(scored_tokens(100 + call, chunk));
      CHECK(std::ssize(outputs) == chunk);
      if (subject.budget > 0) {
        CHECK(std::ssize(head.entries()) == std::min(subject.budget, head.tokens_seen()));
        CHECK(head.largest_size() <= subject.budget + 13);
      }
      const auto positions = head.positions();
      CHECK(positions.back() == head.tokens_seen() - 1);
      CHECK(std::is_sorted(positions.begin(), positions.end()));
      if (subject.conserves_weight)
        CHECK(
            support::close(head.total_weight(), static_cast<double>(head.tokens_seen()), 1e-12, 0));
    }
    const auto gone = static_cast<Integer>(head.events().size());
    Integer opened = 0;
    for (const Event& event : head.events()) opened += event.opened_slot ? 1 : 0;
    CHECK(std::ssize(head.entries()) + gone - opened == head.tokens_seen());
    CHECK((subject.name == "full") == (gone == 0));
  }
}

TEST_CASE("reference rows are causal within a chunk", "[reference]") {
  auto tokens = scored_tokens(23, 12);
  Head whole(std::make_shared<Full>());
  whole.extend(tokens);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    CHECK(whole.last_rows()[t].group.size() == t + 1);
    CHECK(whole.last_rows()[t].position == static_cast<Integer>(t));
  }
  tokens.back().key = {9, 9, 9, 9, 9, 9};  // what comes later must not be seen
  Head changed(std::make_shared<Full>());
  changed.extend(tokens);
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t)
    CHECK(whole.outputs()[t].outputs == changed.outputs()[t].outputs);
  CHECK(whole.outputs().back().outputs != changed.outputs().back().outputs);
}
