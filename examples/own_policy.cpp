// SPDX-License-Identifier: Apache-2.0
// A policy of your own, three ways: whole, as one new part, and as a combination of parts. What a
// part must be, and what it is given: tersekv/policy_parts.hpp; what bodies may ask of a team and a
// head: tersekv/team.hpp, tersekv/head.hpp. Compile with -DTERSEKV_CHECKED while you write one: a
// statistic that nobody asked for, or a slot that is not live, then throws. (For a GPU, too, mark
// the bodies TERSEKV_HD: tersekv/policy_parts.hpp says more.)
#include <bit>
#include <cmath>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <tersekv/tersekv.hpp>
#include <vector>

using tersekv::Index;

// 1. A whole policy, written by hand: PolicyBase keeps everything, replace what differs. This one
// thins out the past like the marks of a ruler: the latest `recent` tokens stay, and of the older
// ones those at odd positions go first, then those at odd multiples of 2, of 4, and so on. It
// sees no attention, so it runs with any kernel.
struct Ruler : tersekv::PolicyBase {
  static constexpr bool needs_budget = true;
  Index recent = 8;

  void validate(const tersekv::Shape&, Index budget) const {
    if (recent < 0) throw std::invalid_argument("Ruler: recent must be at least 0");
    if (budget < 1 || budget < recent) {
      throw std::invalid_argument("Ruler: the budget must be at least 1, and at least recent");
    }
  }
  // Memory is reserved for this many entries, and for what a call appends.
  Index max_length(const tersekv::Shape&, Index budget, Index) const { return budget; }

  // A head's entries lie in slots [0, length), in no particular order.
  template <class Head>
  float score(const Head& head, Index slot) const {  // the height of the mark
    return static_cast<float>(std::countr_zero(static_cast<std::uint64_t>(head.position(slot))));
  }
  // Called after every step or chunk. A team's operations stand for loops over the slots.
  template <class Team, class Head>
  void compress(Team& team, const Head& head) const {
    const Index excess = head.length() - head.budget();
    if (excess <= 0) return;
    std::int32_t* victims = head.scratch().slots;
    team.smallest(
        excess, head, head.length(),
        [&](Index i) { return head.position(i) < head.tokens_seen() - recent; },
        [&](Index i) { return score(head, i); }, victims);
    team.once([&] { head.state().counts.evictions += excess; });
    tersekv::remove_entries(team, head, victims, excess);
  }
};
static_assert(tersekv::CachePolicy<Ruler>);

// 2. One new part. A scorer that keeps the keys with the smallest norm, which attract the most
// attention (Devoto et al. 2024, arXiv 2406.11430). Selector and merger are the library's; as they
// come, LowestScore protects no sinks and the latest half of the budget.
struct SmallKeys : tersekv::ScorerBase {
  Index statistics(const tersekv::Shape&) const { return 1; }  // |k|^2

  template <class Team, class Head>
  void append(Team& team, const Head& head, Index first, Index count, const float*) const {
    team.for_each(count, [&](Index i) {
      float square = 0;
      for (Index j = 0; j < head.head_dim(); ++j) {
        square += head.key(first + i, j) * head.key(first + i, j);
      }
      head.stat(0, first + i) = square;
    });
  }
  template <class Head>
  float score(const Head& head, Index slot) const {  // higher = keep
    return -head.stat(0, slot);
  }
};
using KeepSmallKeys = tersekv::Policy<SmallKeys, tersekv::LowestScore, tersekv::Drop>;

// A scorer that is shown attention: H2O's sum of it, times the length of the value that it leads to
// (Guo et al. 2024, arXiv 2406.12335). Statistics start at 0, and stay as they are where a merger
// changes the entry: what depends on a key or a value is then better worked out in `score`.
struct AttendedValues : tersekv::ScorerBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::attention;
  Index statistics(const tersekv::Shape&) const { return 2; }  // sum of attention, |v|_1

  template <class Team, class Head>
  void append(Team& team, const Head& head, Index first, Index count, const float*) const {
    team.for_each(count, [&](Index i) {
      float length = 0;
      for (Index j = 0; j < head.head_dim(); ++j) length += std::abs(head.value(first + i, j));
      head.stat(1, first + i) = length;
    });
  }
  template <class Team, class Head>
  void observe(Team& team, const Head& head, const tersekv::Observation& row) const {
    team.for_each_entry(head, row.visible,
                        [&](auto slot) { head.stat(0, slot) += row.attention[slot]; });
  }
  template <class Head>
  float score(const Head& head, Index slot) const {
    return head.stat(0, slot) * head.stat(1, slot);
  }
};
using KeepAttendedValues = tersekv::Policy<AttendedValues, tersekv::LowestScore, tersekv::Drop>;

// 3. Combinations nobody has published, one line each. As they come, both protect the latest half
// of the budget and no sinks; the residual slots of MorphSlots (2 % of the rest, at least 1) never
// leave either. DecayedNeighbour's merger shares values out by score, so scores must be >= 0.
using MorphSlots =
    tersekv::Policy<tersekv::FusedWindowAttention, tersekv::LowestScore, tersekv::ResidualSlots>;
using DecayedNeighbour =
    tersekv::Policy<tersekv::DecayedAttention, tersekv::LowestScore, tersekv::RightNeighbour>;

// Reads 200 random tokens with 16 entries per head, and prints what one head kept.
template <class PolicyType>
void show(const std::string& name, const PolicyType& policy) {
  constexpr Index heads = 2, dim = 8;
  tersekv::KVCache<PolicyType> cache(
      {.num_q_heads = 2 * heads, .num_kv_heads = heads, .head_dim = dim, .budget = 16}, policy);
  std::mt19937 random(1);
  std::vector<float> q(2 * heads * dim), k(heads * dim), v(heads * dim), out(2 * heads * dim);
  const auto row = [](std::vector<float>& x) {
    return tersekv::nhd_view(x.data(), 1, static_cast<Index>(x.size()) / dim, dim);
  };
  for (int token = 0; token < 200; ++token) {
    for (auto* x : {&q, &k, &v}) {
      for (float& element : *x) element = static_cast<float>(random()) * 0x1p-31f - 1;
    }
    cache.extend(row(q), row(k), row(v), row(out));
  }
  std::cout << name << ":";
  float weights = 0;
  for (const tersekv::Entry& entry : cache.entries(0, 0)) {
    std::cout << ' ' << entry.position;
    weights += entry.weight;
  }
  const tersekv::Counts counts = cache.counts(0, 0);
  std::cout << "\n  " << counts.evictions << " evicted, " << counts.merges
            << " merged; the entries stand for " << weights << " tokens\n";
}

int main() {
  show("ruler", Ruler{});
  show("small keys", KeepSmallKeys{});
  // Protections are the selector's to set: here the first 2 and the latest 4.
  tersekv::LowestScore protecting;
  protecting.protection = {.sinks = 2, .recent = 4};
  show("small keys, protected otherwise", KeepSmallKeys(SmallKeys{}, protecting));
  show("attended values", KeepAttendedValues{});
  // A window as long as the protection: whoever competes has been seen by equally many queries.
  tersekv::FusedWindowAttention latest_queries;
  latest_queries.window = 8;
  show("morph slots", MorphSlots(latest_queries));
  tersekv::DecayedAttention soon_forgotten;
  soon_forgotten.decay = 0.8f;
  show("decayed neighbour", DecayedNeighbour(soon_forgotten));
}
