// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "support/random.hpp"
#include "tersekv/cuda/body/team.hpp"

// Each operation of a device's team, of one block and of several, against a loop that anybody can
// check.

using namespace tersekv;
using namespace tersekv::cuda;
using on_device::Array;
using support::Random;

namespace {

/// What an operation over entries asks of a head: keys and positions.
struct Candidates {
  const float* keys;
  const Index* positions;
  const int* eligible;
  TERSEKV_HD Index page_index(Index slot) const { return slot / 16; }
  TERSEKV_HD Index in_page(Index slot) const { return slot % 16; }
  TERSEKV_HD PageSlot page_slot(Index page) const { return {nullptr, nullptr, page * 16, 0}; }
  TERSEKV_HD Index position(Index i) const { return positions[i]; }
};

enum class Operation { each, each_entry, once, least, most, least_by, smallest, collect, sort };

struct OperationBody {
  struct Args {
    Operation operation;
    Candidates head;
    Index n, k;
    std::int32_t* list;
    Index* result;  // [lanes]
    std::byte* exchange;
  };
  static constexpr int kThreads = 64;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const BlockTeam<Context> team(context, args.exchange);
    const Candidates& head = args.head;
    const auto eligible = [&](Index i) { return head.eligible[i] != 0; };
    const auto key = [&](Index i) { return head.keys[i]; };
    Index result = -2;
    switch (args.operation) {
      case Operation::each:
        team.for_each(args.n, [&](Index i) { args.list[i] = static_cast<std::int32_t>(2 * i); });
        break;
      case Operation::each_entry:
        team.for_each_entry(head, args.n,
                            [&](auto i) { args.list[i] = static_cast<std::int32_t>(3 * i); });
        break;
      case Operation::once:
        for (int round = 0; round < 3; ++round) team.once([&] { args.list[0] += 1; });
        break;
      case Operation::least:
        result = team.argmin(head, args.n, eligible, key);
        break;
      case Operation::most:
        result = team.argmax(head, args.n, eligible, key);
        break;
      case Operation::least_by:
        result =
            team.argmin(head, args.n, eligible, key, [&](Index i) { return -head.position(i); });
        break;
      case Operation::smallest:
        team.smallest(args.k, head, args.n, eligible, key, args.list);
        break;
      case Operation::collect:
        result = team.collect(head, args.n, eligible, args.list);
        break;
      case Operation::sort:
        team.for_each(args.n,
                      [&](Index i) { args.list[i] = static_cast<std::int32_t>(args.n - 1 - i); });
        team.sort(args.list, args.n, [&](std::int32_t a, std::int32_t b) {
          return head.keys[a] < head.keys[b] ||
                 (head.keys[a] == head.keys[b] && head.position(a) < head.position(b));
        });
        break;
    }
    args.result[team.lane()] = result;
  }
};

struct Problem {
  std::vector<float> keys;
  std::vector<Index> positions;
  std::vector<int> eligible;

  /// Few different keys, so that ties are the rule; positions in an order that is not the slots'.
  Problem(Random& random, Index n) : positions(static_cast<std::size_t>(n)) {
    std::iota(positions.begin(), positions.end(), 10);
    for (std::size_t i = positions.size(); i > 1; --i) {
      std::swap(positions[i - 1],
                positions[static_cast<std::size_t>(random.integer(0, static_cast<Index>(i) - 1))]);
    }
    for (Index i = 0; i < n; ++i) {
      keys.push_back(static_cast<float>(random.integer(-2, 2)));
      eligible.push_back(random.chance(0.6) ? 1 : 0);
    }
  }
  Index size() const { return std::ssize(keys); }
  float key(Index i) const { return keys[static_cast<std::size_t>(i)]; }
  Index position(Index i) const { return positions[static_cast<std::size_t>(i)]; }
  /// Slots, the eligible or all, by key (times `sign`), then by position (times `later`).
  std::vector<std::int32_t> in_order(bool all, float sign = 1, Index later = 1) const {
    std::vector<std::int32_t> slots;
    for (Index i = 0; i < size(); ++i) {
      if (all || eligible[static_cast<std::size_t>(i)] != 0) {
        slots.push_back(static_cast<std::int32_t>(i));
      }
    }
    std::sort(slots.begin(), slots.end(), [&](std::int32_t a, std::int32_t b) {
      if (key(a) != key(b)) return sign * key(a) < sign * key(b);
      return later * position(a) < later * position(b);
    });
    return slots;
  }
};

struct Outcome {
  std::vector<std::int32_t> list;
  std::vector<Index> results;
};

Outcome run(Operation operation, const Problem& p, int team, Index k = 0) {
  const Array<float> keys(p.keys);
  const Array<Index> positions(p.positions);
  const Array<int> eligible(p.eligible);
  const Array<std::int32_t> list(p.size() + 1, 0);
  const Array<Index> result(team * OperationBody::kThreads, -3);
  const Array<std::byte> exchange(DeviceScratch::kMostTeamBlocks * DeviceScratch::kExchangeBytes);
  on_device::run<OperationBody>({team}, team,
                                {operation,
                                 {keys.data(), positions.data(), eligible.data()},
                                 p.size(),
                                 k,
                                 list.data(),
                                 result.data(),
                                 exchange.data()});
  return {list.host(), result.host()};
}

std::vector<std::int32_t> first(std::vector<std::int32_t> list, std::size_t n) {
  list.resize(n);
  return list;
}

}  // namespace

TEST_CASE("team: every operation of a device's team does what the loop does", "[small]") {
  on_device::require_device();
  const int team = GENERATE(1, 2);
  Random random(static_cast<std::uint64_t>(team));
  for (const Index n : {0, 1, 2, 7, 33, 130}) {
    const Problem p(random, n);
    CAPTURE(team, n, random);
    const auto same = [&](Operation operation, Index want) {
      for (Index of_lane : run(operation, p, team).results) CHECK(of_lane == want);
    };
    const auto chosen = p.in_order(false);
    same(Operation::least, chosen.empty() ? -1 : chosen[0]);
    same(Operation::most, chosen.empty() ? -1 : p.in_order(false, -1)[0]);
    same(Operation::least_by, chosen.empty() ? -1 : p.in_order(false, 1, -1)[0]);

    const Outcome collected = run(Operation::collect, p, team);
    auto ascending = chosen;
    std::sort(ascending.begin(), ascending.end());
    CHECK(first(collected.list, chosen.size()) == ascending);
    for (Index of_lane : collected.results) CHECK(of_lane == std::ssize(chosen));

    CHECK(first(run(Operation::sort, p, team).list, p.keys.size()) == p.in_order(true));
    for (const Index k : {Index{1}, std::ssize(chosen) / 2, std::ssize(chosen)}) {
      if (k < 1 || k > std::ssize(chosen)) continue;
      const auto count = static_cast<std::size_t>(k);
      CHECK(first(run(Operation::smallest, p, team, k).list, count) == first(chosen, count));
    }
    const auto each = run(Operation::each, p, team).list,
               entry = run(Operation::each_entry, p, team).list;
    for (Index i = 0; i < n; ++i) {
      CHECK(each[static_cast<std::size_t>(i)] == 2 * i);
      CHECK(entry[static_cast<std::size_t>(i)] == 3 * i);
    }
    CHECK(run(Operation::once, p, team).list[0] == 3);
  }
}
