// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "../support/compare.hpp"
#include "../support/random.hpp"
#include "keepkv.hpp"
#include "random_tokens.hpp"

// No golden trace of KeepKV as a whole exists, so its replay is held to examples worked by hand and
// to the identities that the definition implies.

using reference::Integer;
using reference::KeepKV;
using reference::KeepKVSelector;
using reference::KeyRule;
using reference::Token;
using support::close;

namespace {

/// Four tokens with the constant query (1, 0), so that a predicted log-score is the key's first
/// component whatever the decay.
reference::Head replay_by_hand(const std::vector<reference::Vector>& keys, KeepKVSelector selector,
                               Integer sinks = 0) {
  auto head = reference::make_head<KeepKV>(
      {.budget = 3, .recent = 1, .sinks = sinks, .decay = 0.5, .selector = selector}, {.scale = 1});
  std::vector<Token> tokens;
  for (const auto& key : keys)
    tokens.push_back({{{1, 0}}, key, {static_cast<double>(tokens.size())}});
  head.extend(tokens);
  return head;
}

}  // namespace

TEST_CASE("reference KeepKV folds the lowest victim into the most similar key", "[reference]") {
  const auto head = replay_by_hand({{2, 0}, {-1, 1}, {-0.5, 0.9}, {0, 0}}, KeepKVSelector::victim);
  CHECK(support::same_indices(head.positions(), std::vector{0, 2, 3}));
  const auto& merged = head.entries()[1];
  const double share = std::exp(-1.0) / (std::exp(-1.0) + std::exp(-0.5));  // of token 1
  CHECK(close(merged.value[0], share * 1 + (1 - share) * 2, 1e-12, 0));
  CHECK(close(merged.key[0], -share - 0.5 * (1 - share), 1e-12, 0));
  CHECK(merged.weight == 2);
  const double predicted = merged.log_average[0] - reference::log_bias(merged.queries, 0.5);
  CHECK(close(predicted, std::log((std::exp(-1.0) + std::exp(-0.5)) / 2), 1e-12, 0));
  CHECK(merged.queries == 2);  // the carrier's: queries of tokens 2 and 3
  REQUIRE(head.events().size() == 1);
  CHECK(head.events()[0].victim == 1);
  CHECK(head.events()[0].target == 2);
}

TEST_CASE("reference KeepKV selectors differ, and a merged entry takes the later position",
          "[reference]") {
  const std::vector<reference::Vector> keys{{2, 0}, {1.9, 0.1}, {-1, 1}, {0, 0}};
  const auto victim = replay_by_hand(keys, KeepKVSelector::victim);
  REQUIRE(victim.events().size() == 1);
  CHECK(victim.events()[0].victim == 2);
  CHECK(victim.events()[0].target == 1);
  CHECK(support::same_indices(victim.positions(), std::vector{0, 2, 3}));
  const auto pair = replay_by_hand(keys, KeepKVSelector::pair);
  REQUIRE(pair.events().size() == 1);
  CHECK(pair.events()[0].victim == 0);
  CHECK(pair.events()[0].target == 1);
  CHECK(support::same_indices(pair.positions(), std::vector{1, 2, 3}));
  for (KeepKVSelector selector : {KeepKVSelector::victim, KeepKVSelector::pair}) {
    const auto with_sink = replay_by_hand(keys, selector, 1);
    REQUIRE(with_sink.events().size() == 1);
    CHECK(with_sink.events()[0].victim != 0);
    CHECK(with_sink.events()[0].target != 0);
  }
}

TEST_CASE("reference KeepKV breaks ties by position", "[reference]") {
  // Equal keys throughout: lowest position leaves, lowest position carries, first pair wins.
  const std::vector<reference::Vector> keys{{1, 1}, {1, 1}, {1, 1}, {1, 1}};
  for (KeepKVSelector selector : {KeepKVSelector::victim, KeepKVSelector::pair}) {
    const auto head = replay_by_hand(keys, selector);
    CHECK(head.events()[0].victim == 0);
    CHECK(head.events()[0].target == 1);
    CHECK(head.margin().exact_ties > 0);
  }
}

TEST_CASE("reference KeepKV keeps the current output (Theorem 3)", "[reference]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    support::Random random(seed);
    INFO(random);
    for (KeepKVSelector selector : {KeepKVSelector::victim, KeepKVSelector::pair}) {
      for (KeyRule rule : {KeyRule::scale, KeyRule::along_query, KeyRule::mean}) {
        // Without memory the predicted score is the current one.
        auto head = reference::make_head<KeepKV>(
            {.budget = 12, .decay = 0, .selector = selector, .key_rule = rule});
        for (int step = 0; step < 6; ++step) {
          const Integer chunk = random.integer(1, 20);
          head.extend(random_tokens(random, chunk, 1, 8), reference::kNever);
          const auto before = head.last_rows().back();
          head.compress();
          const auto after = reference::attend(before.queries[0], head.entries(),
                                               head.entries().size(), 1, 1 / std::sqrt(8.0));
          CHECK(close(head.total_weight(), static_cast<double>(head.tokens_seen()), 1e-12, 0));
          if (rule == KeyRule::mean) {
            // The uncorrected key lies above tau by the divergence, so mass can only be gained.
            CHECK(after.lse >= before.heads[0].lse - 1e-12);
          } else {
            CHECK(close(after.lse, before.heads[0].lse, 1e-9, 1e-9));
            CHECK(support::close_all(after.output, before.heads[0].output, 1e-7, 1e-7));
          }
        }
      }
    }
  }
}

TEST_CASE("reference KeepKV's predicted mass without memory is the group's attention",
          "[reference]") {
  support::Random random(7);
  INFO(random);
  const auto policy = std::make_shared<KeepKV>(KeepKV::Options{.budget = 12, .decay = 0});
  reference::Head head(policy);
  for (Integer step = 0; step < 40; ++step) {
    head.extend(random_tokens(random, 1, 3, 8), reference::kNever);
    const auto& row = head.last_rows().back();
    for (std::size_t i = 0; i < head.entries().size(); ++i)
      CHECK(close(policy->log_mass(head.entries()[i]), std::log(row.group[i]), 1e-10, 1e-10));
    head.compress();
  }
}

TEST_CASE("a convex merge of keys without compensation loses attention mass (Jensen)",
          "[reference]") {
  support::Random random(11);
  INFO(random);
  for (int trial = 0; trial < 200; ++trial) {
    const double l_e = random.normal(3), l_c = random.normal(3), share = random.unit();
    CHECK(std::exp(share * l_e + (1 - share) * l_c) < std::exp(l_e) + std::exp(l_c));
  }
}

TEST_CASE("reference KeepKV: folding at once or one by one predicts the same", "[reference]") {
  const double decay = 0.9;
  // Three entries with votes 1, 2, 3 and log-scores -1, 0.5, 2 folded in two orders.
  const auto fold = [](double p_e, double l_e, double p_c, double l_c) {
    return std::log((p_e * std::exp(l_e) + p_c * std::exp(l_c)) / (p_e + p_c));
  };
  CHECK(close(fold(3, fold(1, -1, 2, 0.5), 3, 2), fold(1, -1, 5, fold(2, 0.5, 3, 2)), 1e-12, 0));
  CHECK(close(reference::next_log_average(0, 0, 3.0, decay) - reference::log_bias(1, decay), 3.0,
              1e-12, 0));
}

TEST_CASE("reference KeepKV refuses a budget that leaves nothing to merge", "[reference]") {
  CHECK_THROWS_AS(KeepKV({.budget = 8}), std::invalid_argument);
  CHECK_NOTHROW(KeepKV({.budget = 9}));
}
