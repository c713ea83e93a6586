// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <vector>

#include "bare_head.hpp"
#include "reference/keepkv.hpp"
#include "support/random.hpp"
#include "tersekv/tersekv.hpp"
#include "threads/thread_team.hpp"

// The choices of MostSimilarPair over many compressions against all pairs looked at, with so few
// different keys that most similarities are ties, and merges that give an entry another's key.

using namespace tersekv;
using support::BareHead;
using support::Random;

namespace {

constexpr Index kDim = 4;
using Key = reference::Vector;

Key turned(const Key& key) { return {key[1], key[2], key[0], key[3]}; }

/// The older entry's key, turned, becomes the later entry's: what a merge makes is as easily tied
/// as what it was made of.
struct Turn : MergerBase {
  static constexpr bool changes_scores = true;
  Index statistics(const Shape&) const { return 1; }
  Index spare() const { return 1; }
  KeyNorms norms(Index column) const { return {column}; }
  template <class Team, class Head>
  void append(Team& team, const Head& head, Index first, Index count, Index column) const {
    norms(column).update(team, head, first, count);
  }
  template <class Team, class Head, class Scorer>
  void merge(Team& team, const Head& head, const Scorer&, Index victim, Index target,
             Index column) const {
    team.write_key(head, target,
                   [&](Index j) { return head.key(victim, j < 3 ? (j + 1) % 3 : j); });
    team.once([&] { ++head.state().counts.merges; });
    norms(column).update(team, head, target, 1);
  }
  template <class Team, class Head, class Scorer, class Eligible>
  Index retire(Team&, const Head&, const Scorer&, std::int32_t*, Index count, const Eligible&,
               Index) const {
    return count;
  }
};
using Pairs = Policy<Age, MostSimilarPair, Turn>;

struct Token {
  Index position;
  Key key;
  bool operator==(const Token&) const = default;
};

/// What is to be left of tokens in the order of their positions, of which [first, end) may leave.
void compress(std::vector<Token>& tokens, Index budget, Index first, Index end, int& ties) {
  const auto is_free = [&](const Token& t) { return t.position >= first && t.position < end; };
  while (static_cast<Index>(tokens.size()) > budget) {
    std::size_t older = 0, later = 0;
    double highest = -2;
    for (std::size_t a = 0; a < tokens.size(); ++a) {
      for (std::size_t b = a + 1; b < tokens.size(); ++b) {
        if (!is_free(tokens[a]) || !is_free(tokens[b])) continue;
        const double here = reference::cosine(tokens[a].key, tokens[b].key);
        ties += here == highest ? 1 : 0;
        if (here <= highest) continue;
        highest = here;
        older = a;
        later = b;
      }
    }
    tokens[later].key = turned(tokens[older].key);
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(older));
  }
}

std::vector<Token> entries_of(BareHead<Pairs>& bare) {
  const auto head = bare.head();
  std::vector<Token> entries;
  for (const Index position : bare.positions()) {
    const Index slot = bare.slot_at(position);
    Key key;
    for (Index j = 0; j < kDim; ++j) key.push_back(static_cast<double>(head.key(slot, j)));
    entries.push_back({position, key});
  }
  return entries;
}

/// run(body): body(team) by a team.
template <class Run>
void check_choices(std::uint64_t seed, Index sinks, Index recent, Index chunk, Run&& run) {
  Random random(seed);
  INFO(random);
  CAPTURE(sinks, recent, chunk);
  MostSimilarPair selector;
  selector.protection = {.sinks = sinks, .recent = recent};
  const Pairs policy(Age{}, selector);
  const Index budget = sinks + recent + random.integer(1, 40);
  const Shape shape{.group_size = 1, .head_dim = kDim};
  BareHead<Pairs> bare(policy, shape, budget, budget + 64, 16);
  std::vector<Token> want;
  int ties = 0;
  Index compressions = 0;
  for (Index seen = 0; seen < budget + 150;) {
    const Index first = bare.head().length();
    const Index count = seen == 0 ? random.integer(1, budget + 60) : random.integer(1, chunk);
    for (Index i = 0; i < count; ++i) {
      // Axes of either sign, lengths 1, 2 and 4, and sometimes none.
      std::vector<float> key(kDim, 0.0f);
      key[static_cast<std::size_t>(random.integer(0, 2))] =
          random.pick(std::vector<float>{-2, 1, 2, 4, 1, 0});
      bare.push(key.data(), key.data());
      want.push_back({seen++, Key(key.begin(), key.end())});
    }
    run([&](auto& team) {
      policy.append(team, bare.head(), first, count, nullptr);
      policy.compress(team, bare.head());
    });
    bare.head().state().fresh = 0;
    compressions += static_cast<Index>(want.size()) > budget ? 1 : 0;
    compress(want, budget, sinks, seen - recent, ties);
    REQUIRE(entries_of(bare) == want);
  }
  CHECK(compressions >= 80 / chunk);
  CHECK(ties > 150);
}

}  // namespace

TEST_CASE("over many compressions the closest pairs merge, whatever was kept of those before") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    for (const Index chunk : {1, 2, 7}) {
      for (const Index recent : {0, 5}) {
        check_choices(seed, seed % 2 == 0 ? 0 : 3, recent, chunk, [](auto&& body) {
          SerialTeam team;
          body(team);
        });
      }
    }
  }
}

TEST_CASE("so they do on several lanes") {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    for (const Index chunk : {1, 3}) {
      check_choices(seed, 2, 4, chunk, [](auto&& body) {
        support::ThreadTeam::run(3, [&](support::ThreadTeam& team, Index) { body(team); });
      });
    }
  }
}
