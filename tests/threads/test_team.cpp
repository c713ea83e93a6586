// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "bare_head.hpp"
#include "threads/candidates.hpp"

// Each operation of a team, on one thread and on several, against a loop that anybody can check.

using support::Candidates;
using support::on_every_lane;
using support::Random;
using support::random_candidates;
using support::Slots;
using support::ThreadTeam;
using tersekv::Index;
using tersekv::SerialTeam;

namespace {

/// As on_every_lane, for an operation that writes a list: body(team, list) -> length.
template <class Body>
std::vector<Slots> lists_on_every_team(const Slots& before, Body body) {
  std::vector<Slots> results;
  const auto keep = [&](Slots list, Index length) {
    list.resize(static_cast<std::size_t>(length));
    results.push_back(list);
  };
  SerialTeam serial;
  Slots list = before;
  const Index length = body(serial, list.data());
  keep(list, length);
  for (Index lanes = 1; lanes <= 4; ++lanes) {
    list = before;
    std::vector<Index> lengths(static_cast<std::size_t>(lanes));
    ThreadTeam::run(lanes, [&](ThreadTeam& team, Index lane) {
      lengths[static_cast<std::size_t>(lane)] = body(team, list.data());
    });
    for (Index of_lane : lengths) keep(list, of_lane);
  }
  return results;
}

const std::vector<Index> kSizes{0, 1, 2, 3, 7, 16, 33, 700, 2500};  // the last is a long head

}  // namespace

TEST_CASE("argmin and argmax name the lowest position among equals, or -1") {
  Random random(1);
  INFO(random);
  for (Index n : kSizes) {
    for (double share : {0.0, 0.5, 1.0}) {
      const Candidates c = random_candidates(random, n, share);
      const Slots up = c.in_order(), down = c.in_order(true);
      INFO("n " << n << ", eligible " << up.size());
      for (Index got :
           on_every_lane([&](auto& team) { return team.argmin(c, n, c.is_eligible(), c.key()); })) {
        CHECK(got == (up.empty() ? -1 : up.front()));
      }
      for (Index got : on_every_lane([&](auto& team) {
             return team.argmin(c, n, c.vector_eligible(), c.vector_key());
           })) {
        CHECK(got == (up.empty() ? -1 : up.front()));
      }
      for (Index got :
           on_every_lane([&](auto& team) { return team.argmax(c, n, c.is_eligible(), c.key()); })) {
        CHECK(got == (down.empty() ? -1 : down.front()));
      }
    }
  }
}

TEST_CASE("argmin sees a second entry with the lowest key, in the same lane and in others") {
  Random random(7);
  INFO(random);
  for (Index n : {40, 100, 700}) {
    Candidates c = random_candidates(random, n, 0.9);
    std::iota(c.keys.begin(), c.keys.end(), 1.0f);
    for (Index apart : {0, 1, 3, 4, 8, 15, 16, 32, 64, 512}) {
      for (Index first = 0; first + apart < n; first += 7) {
        INFO("n " << n << ", slots " << first << " and " << first + apart);
        const auto a = static_cast<std::size_t>(first), b = a + static_cast<std::size_t>(apart);
        Candidates tied = c;
        tied.keys[a] = tied.keys[b] = 0;
        tied.eligible[a] = tied.eligible[b] = true;
        const Index want = static_cast<Index>(c.positions[a] < c.positions[b] ? a : b);
        Index vectors = 0, asked = 0;
        SerialTeam().for_each_vector(tied, n, [&](auto) { ++vectors; });
        const auto key = tersekv::detail::OfVectors{
            [&](auto slots) { return ++asked, tied.vector_key()(slots); }};
        CHECK(want == SerialTeam().argmin(tied, n, tied.vector_eligible(), key));
        CHECK(asked == (apart == 0 ? vectors : 2 * vectors));
        CHECK(want == SerialTeam().argmin(tied, n, tied.is_eligible(), tied.key()));
      }
    }
  }
}

TEST_CASE("argmin and argmax take keys as far as floats go") {
  constexpr float most = std::numeric_limits<float>::max();
  Candidates c;
  c.keys = {0, most, -most, most, -most, 1};
  c.positions = {0, 5, 4, 1, 3, 2};
  const auto lowest_of = [&](const std::vector<bool>& eligible, bool highest) {
    c.eligible = eligible;
    Slots found;
    for (Index got : on_every_lane([&](auto& team) {
           return highest ? team.argmax(c, 6, c.is_eligible(), c.key())
                          : team.argmin(c, 6, c.is_eligible(), c.key());
         })) {
      if (found.empty() || found.back() != got) found.push_back(static_cast<std::int32_t>(got));
    }
    if (!highest) {
      CHECK(SerialTeam().argmin(c, 6, c.vector_eligible(), c.vector_key()) == found.front());
    }
    return found;
  };
  CHECK(lowest_of({true, true, true, true, true, true}, false) == Slots{4});
  CHECK(lowest_of({true, true, true, true, true, true}, true) == Slots{3});
  CHECK(lowest_of({false, true, false, true, false, false}, false) == Slots{3});
  CHECK(lowest_of({false, false, true, false, true, false}, true) == Slots{4});
  CHECK(lowest_of({true, true, false, true, false, false}, false) == Slots{0});
}

TEST_CASE("smallest lists the k lowest, lowest first, ties by position, k up to all") {
  Random random(2);
  INFO(random);
  for (Index n : kSizes) {
    for (double share : {0.3, 1.0}) {
      const Candidates c = random_candidates(random, n, share);
      const Slots want = c.in_order();
      const auto most = static_cast<Index>(want.size());
      for (Index k : {Index{1}, Index{2}, most / 2, most - 1, most}) {
        if (k < 1 || k > most) continue;
        INFO("n " << n << ", eligible " << most << ", k " << k);
        const Slots first(want.begin(), want.begin() + k);
        for (const Slots& got : lists_on_every_team(
                 Slots(static_cast<std::size_t>(n), -7), [&](auto&team, std::int32_t*out) {
                   team.smallest(k, c, n, c.is_eligible(), c.key(), out);
                   return k;
                 })) {
          CHECK(got == first);
        }
      }
    }
  }
}

TEST_CASE("smallest of nobody is -1") {
  Random random(3);
  for (Index n : {0, 5}) {
    const Candidates c = random_candidates(random, n, 0.0);
    for (const Slots& got : lists_on_every_team(Slots(5, -7), [&](auto&team, std::int32_t*out) {
           team.smallest(1, c, n, c.is_eligible(), c.key(), out);
           return Index{1};
         })) {
      CHECK(got == Slots{-1});
    }
  }
}

TEST_CASE("collect lists the wanted indices in ascending order") {
  Random random(4);
  INFO(random);
  for (Index n : kSizes) {
    for (double share : {0.0, 0.4, 1.0}) {
      const Candidates c = random_candidates(random, n, share);
      Slots want = c.in_order();
      std::sort(want.begin(), want.end());
      const auto check = [&](const auto& wanted) {
        const Slots room(static_cast<std::size_t>(n));
        for (const Slots& got : lists_on_every_team(room, [&](auto&team, std::int32_t*out) {
               return team.collect(c, n, wanted, out);
             })) {
          CHECK(got == want);
        }
      };
      check(c.is_eligible());
      check(c.vector_eligible());
    }
  }
}

TEST_CASE("sort orders by the given relation") {
  Random random(5);
  INFO(random);
  for (Index n : kSizes) {
    const Candidates c = random_candidates(random, n, 1.0);
    Slots shuffled(static_cast<std::size_t>(n));
    for (Index i = 0; i < n; ++i) {
      shuffled[static_cast<std::size_t>(c.positions[static_cast<std::size_t>(i)] - 10)] =
          static_cast<std::int32_t>(i);
    }
    for (const Slots& got : lists_on_every_team(shuffled, [&](auto&team, std::int32_t*items) {
           team.sort(items, n, [&](std::int32_t a, std::int32_t b) {
             return c.keys[static_cast<std::size_t>(a)] < c.keys[static_cast<std::size_t>(b)] ||
                    (c.keys[static_cast<std::size_t>(a)] == c.keys[static_cast<std::size_t>(b)] &&
                     c.positions[static_cast<std::size_t>(a)] <
                         c.positions[static_cast<std::size_t>(b)]);
           });
           return n;
         })) {
      CHECK(got == c.in_order());
    }
  }
}

TEST_CASE("for_each visits every index once, once runs once") {
  for (Index n : kSizes) {
    for (Index lanes = 1; lanes <= 4; ++lanes) {
      std::vector<int> visits(static_cast<std::size_t>(n));
      int runs = 0;
      ThreadTeam::run(lanes, [&](ThreadTeam& team, Index) {
        team.for_each(n, [&](Index i) { ++visits[static_cast<std::size_t>(i)]; });
        team.once([&] { ++runs; });
        team.for_each(n, [&](Index i) { visits[static_cast<std::size_t>(i)] += runs; });
      });
      CHECK(visits == std::vector<int>(static_cast<std::size_t>(n), 2));
      CHECK(runs == 1);
    }
  }
}

TEST_CASE("for_each_entry visits every slot once, in every page") {
  for (Index n : kSizes) {
    Candidates c;
    c.keys.resize(static_cast<std::size_t>(n));
    for (const auto& visits : on_every_lane([&](auto& team) {
           static std::vector<int> shared;  // one run after the other
           team.once([&] { shared.assign(static_cast<std::size_t>(n), 0); });
           team.for_each_entry(c, n, [&](Index i) { ++shared[static_cast<std::size_t>(i)]; });
           return shared;
         })) {
      CHECK(visits == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  }
}

TEST_CASE("for_each_vector visits every slot once, as many at a time as it says") {
  for (Index n : kSizes) {
    Candidates c;
    c.keys.resize(static_cast<std::size_t>(n));
    for (const auto& visits : on_every_lane([&](auto& team) {
           static std::vector<int> shared;
           team.once([&] { shared.assign(static_cast<std::size_t>(n), 0); });
           team.for_each_vector(c, n, [&](auto slot) {
             Index count = 1;
             if constexpr (requires { slot.live; }) count = slot.live;
             for (Index i = slot; i < slot + count; ++i) ++shared[static_cast<std::size_t>(i)];
           });
           return shared;
         })) {
      CHECK(visits == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  }
}

TEST_CASE("dot gives the same bits on any number of lanes") {
  Random random(6);
  INFO(random);
  const tersekv::Shape shape{.group_size = 1, .head_dim = 12};
  for (Index n : {0, 1, 16, 17, 50}) {
    support::BareHead<tersekv::PolicyBase> bare(tersekv::PolicyBase{}, shape, 64, 64, 16);
    for (Index i = 0; i < n; ++i) {
      bare.push(random.normals(12).data(), random.normals(12).data());
    }
    constexpr int rows = 3, stride = 64;
    const std::vector<float> vectors = random.normals(rows * 12);
    std::vector<float> want(rows * stride);
    SerialTeam().dot<rows>(bare.head(), vectors.data(), n, want.data(), rows, stride);
    for (Index r = 0; r < rows; ++r) {
      for (Index i = 0; i < n; ++i) {
        double product = 0;
        for (Index j = 0; j < 12; ++j) {
          product += static_cast<double>(vectors[static_cast<std::size_t>(r * 12 + j)]) *
                     bare.head().key(i, j);
        }
        CHECK(std::abs(want[static_cast<std::size_t>(r * stride + i)] - product) < 1e-5);
      }
    }
    for (Index lanes = 1; lanes <= 4; ++lanes) {
      std::vector<float> got(rows * stride);
      ThreadTeam::run(lanes, [&](ThreadTeam& team, Index) {
        team.dot<rows>(bare.head(), vectors.data(), n, got.data(), rows, stride);
      });
      CHECK(got == want);
    }
  }
}
