// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "support/random.hpp"
#include "tersekv/team.hpp"
#include "threads/thread_team.hpp"

namespace support {

using tersekv::Index;
using tersekv::SerialTeam;

using Slots = std::vector<std::int32_t>;

/// Keys and positions where a head has statistics.
struct Candidates {
  std::vector<float> keys;
  std::vector<Index> positions;
  std::vector<bool> eligible;

  Index size() const { return static_cast<Index>(keys.size()); }
  // What an operation over entries asks of a head.
  Index page_size() const { return size() > 100 ? 512 : 16; }
  tersekv::PageSlot page_slot(Index page) const {
    return {nullptr, nullptr, page * page_size(), 0};
  }
  Index page_index(Index slot) const { return slot / page_size(); }
  Index in_page(Index slot) const { return slot % page_size(); }
  void ask_for_columns(Index) const {}
  Index position(Index i) const { return positions[static_cast<std::size_t>(i)]; }

  auto key() const {
    return [this](Index i) { return keys[static_cast<std::size_t>(i)]; };
  }
  auto is_eligible() const {
    return [this](Index i) { return static_cast<bool>(eligible[static_cast<std::size_t>(i)]); };
  }
  /// The same less `slack`, of vectors where a team has them.
  auto vector_key(float slack = 0) const {
    return tersekv::detail::OfVectors{[this, slack](auto slot) {
      auto here = tersekv::element_at(keys.data(), slot) - slack;
      if constexpr (requires { slot.live; }) {
        for (Index i = slot.live; i < tersekv::simd::kLanes; ++i) here[i] = -1e30f;
      }
      return here;
    }};
  }
  auto vector_eligible() const {
    return tersekv::detail::OfVectors{[this](auto slot) {
      if constexpr (requires { slot.live; }) {
        tersekv::simd::Ints yes = tersekv::simd::Ints{} - 1;  // beyond the live ones, too
        for (int i = 0; i < slot.live; ++i) yes[i] = is_eligible()(slot + i) ? -1 : 0;
        return yes;
      } else {
        return is_eligible()(slot);
      }
    }};
  }
  /// The eligible, from the lowest (or highest) key to the other end; equal keys by position.
  Slots in_order(bool highest_first = false) const {
    Slots slots;
    for (Index i = 0; i < size(); ++i) {
      if (is_eligible()(i)) slots.push_back(static_cast<std::int32_t>(i));
    }
    for (std::size_t a = 0; a < slots.size(); ++a) {
      for (std::size_t b = a + 1; b < slots.size(); ++b) {
        const float x = key()(slots[a]), y = key()(slots[b]);
        const bool wrong =
            x == y ? position(slots[a]) > position(slots[b]) : (x > y) != highest_first;
        if (wrong) std::swap(slots[a], slots[b]);
      }
    }
    return slots;
  }
};

/// Few different keys, so that ties are the rule; positions in an order that is not the slots'.
inline Candidates random_candidates(Random& random, Index n, double share) {
  Candidates c;
  c.positions.resize(static_cast<std::size_t>(n));
  std::iota(c.positions.begin(), c.positions.end(), 10);
  for (std::size_t i = c.positions.size(); i > 1; --i) {
    std::swap(c.positions[i - 1],
              c.positions[static_cast<std::size_t>(random.integer(0, static_cast<Index>(i) - 1))]);
  }
  for (Index i = 0; i < n; ++i) {
    c.keys.push_back(static_cast<float>(random.integer(-2, 2)));
    c.eligible.push_back(random.chance(share));
  }
  return c;
}

/// Runs body(team) on one thread and on 1 to 4 real ones, and returns what every lane returned.
template <class Body>
auto on_every_lane(Body body) {
  SerialTeam serial;
  std::vector<decltype(body(serial))> results{body(serial)};
  for (Index lanes = 1; lanes <= 4; ++lanes) {
    std::vector<decltype(body(serial))> of_lane(static_cast<std::size_t>(lanes));
    ThreadTeam::run(lanes, [&](ThreadTeam& team, Index lane) {
      of_lane[static_cast<std::size_t>(lane)] = body(team);
    });
    results.insert(results.end(), of_lane.begin(), of_lane.end());
  }
  return results;
}

}  // namespace support
