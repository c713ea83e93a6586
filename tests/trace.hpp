// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache_under_test.hpp"
#include "reference/head.hpp"
#include "reference/int8.hpp"
#include "reference/sixteen_bits.hpp"
#include "reference_reduce.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/stored.hpp"
#include "tersekv/kv_cache.hpp"

/// Random traces of a whole cache against one slow reference per KV head, entry by entry.
namespace trace {

using tersekv::Index;

/// One way to set a policy up, and the reference that must do the same.
template <class Policy>
struct Setup {
  Policy policy;
  Index smallest_budget = 1;
  std::function<std::shared_ptr<reference::Policy>(Index budget)> reference;
  bool merges = false;  // entries change after they were stored
  bool evicts = true;
  Index smallest_dim = 1;   // head_dim from which choices are more than rounding
  bool ties = true;         // equal inputs give equal scores, not only up to rounding
  double error_growth = 1;  // on the tolerance: merges that magnify rounding errors
};

struct Shape {
  Index kv_heads = 1, group = 1, head_dim = 8;
};

/// Which layer all traces are of: what a policy does to some layers only, it does by that.
inline constexpr Index kLayer = 2;

/// What a test asks of all its traces together; printed with a failure.
struct Tally {
  int traces = 0;     // started
  int completed = 0;  // compared to their end in every head
  long entries = 0;   // compared
  long ties = 0;      // choices that only the position decided
  long events = 0;    // evictions and merges whose outcome was compared
};

/// How far library and reference may differ, by what the entries are stored as: `margin` is the
/// relative gap below which a choice may go either way, and the comparison of a head ends.
struct Tolerance {
  double relative, absolute, margin;
};
inline constexpr Tolerance kTolerance{2e-4, 2e-5, 1e-4};
/// In outputs a byte's share counts as a multiple of 2^-16 of the largest.
inline constexpr Tolerance kToleranceOfBytes{2e-4, 1e-4, 1e-4};
/// Of merged entries in 16 bits a replay may be a last bit off in spite of `rounding`: where
/// numbers cancel, and where what is exactly between two is not that in float.
inline constexpr Tolerance kToleranceOfHalf{1.5e-3, 2e-4, 1e-3};
inline constexpr Tolerance kToleranceOfBFloat16{1.2e-2, 2e-3, 1e-3};
template <class Codec>
const Tolerance& tolerance(bool merges) {
  if (tersekv::Codec<Codec>::scaled) return kToleranceOfBytes;
  if (merges && std::is_same_v<Codec, tersekv::Half>) return kToleranceOfHalf;
  return merges && std::is_same_v<Codec, tersekv::BFloat16> ? kToleranceOfBFloat16 : kTolerance;
}

/// What the storage makes of merged entries, as the reference's rounds them; nothing of floats. The
/// others were rounded before the trace.
template <class Codec>
std::function<void(reference::Vector&, reference::Margin&)> rounding() {
  using reference::Margin, reference::Vector;
  if constexpr (tersekv::Codec<Codec>::scaled) return reference::round_to_int8;
  if constexpr (std::is_same_v<Codec, tersekv::Half>) {
    return [](Vector& row, Margin& margin) { round_to(reference::kHalf, row, margin); };
  }
  if constexpr (std::is_same_v<Codec, tersekv::BFloat16>) {
    return [](Vector& row, Margin& margin) { round_to(reference::kBFloat16, row, margin); };
  }
  return {};
}

/// A sequence's tokens: normal numbers, or (ties) with keys that repeat, so that many scores are
/// exactly equal. Such keys are multiples of 1/8, so that their products are exact in float too.
struct Tokens {
  std::vector<float> q, k, v, scores;

  template <class Codec>
  static Tokens random(support::Random& random, Index tokens, const Shape& shape, bool ties) {
    Tokens t;
    t.q = random.normals(tokens * shape.kv_heads * shape.group * shape.head_dim);
    t.k = random.normals(tokens * shape.kv_heads * shape.head_dim);
    t.v = random.normals(tokens * shape.kv_heads * shape.head_dim);
    t.scores = random.normals(tokens * shape.kv_heads);
    if (ties) {
      for (float& x : t.k) x = std::round(x * 8) / 8;
      const auto row = static_cast<std::size_t>(shape.head_dim);
      for (std::size_t i = row; i < t.k.size(); i += row) {
        if (!random.chance(0.6)) continue;
        const auto from =
            static_cast<std::size_t>(random.integer(0, static_cast<Index>(i / row) - 1)) * row;
        std::copy_n(t.k.begin() + static_cast<std::ptrdiff_t>(from), row,
                    t.k.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    support::round_as_stored<Codec>(t.k, shape.head_dim);
    support::round_as_stored<Codec>(t.v, shape.head_dim);
    // Against keys of a byte, queries are rounded, too; these are not, so logits are as exact.
    if (tersekv::Codec<Codec>::scaled) support::round_as_stored<Codec>(t.q, shape.head_dim);
    return t;
  }
};

/// Live entries of a library head against the reference's.
inline void compare_entries(const std::vector<tersekv::Entry>& got, const reference::Head& want,
                            const Tolerance& tolerance, Tally& tally) {
  std::vector<Index> positions;
  for (const auto& entry : got) positions.push_back(entry.position);
  REQUIRE(support::same_indices(positions, want.positions()));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const reference::Entry& entry = want.entries()[i];
    INFO("entry at position " << entry.position);
    REQUIRE(static_cast<double>(got[i].weight) == entry.weight);
    REQUIRE(support::close_all(got[i].key, entry.key, tolerance.relative, tolerance.absolute));
    REQUIRE(support::close_all(got[i].value, entry.value, tolerance.relative, tolerance.absolute));
    ++tally.entries;
  }
}

/// One trace: calls of random sizes until `tokens` are through, outputs and entries compared after
/// every call, for as long as the reference's choices were clear.
template <class Codec, class Policy>
void run_trace(const Setup<Policy>& setup, support::Random& random, Tally& tally, bool ties) {
  const Shape shape{random.integer(1, 3), random.integer(1, 4),
                    std::max(setup.smallest_dim, random.pick(support::kTraceDims))};
  std::vector<Index> budgets;
  for (Index h = 0; h < shape.kv_heads; ++h) {
    budgets.push_back(setup.smallest_budget + (random.chance(0.3) ? 0 : random.integer(0, 20)));
  }
  const Index tokens = random.integer(1, 4 * budgets[0] + 24);
  const Index largest_call = random.pick(std::vector<Index>{1, 2, 7, 40, tokens});
  const Index every = random.pick(std::vector<Index>{0, 0, 1, 3});
  const auto data = Tokens::random<Codec>(random, tokens, shape, ties);
  const Index q_heads = shape.kv_heads * shape.group;
  reference::HeadOptions options;
  options.store = rounding<Codec>();
  const float scale = random.pick(std::vector<float>{0.0f, 0.0f, 0.6f, 1.4f}) /
                      std::sqrt(static_cast<float>(shape.head_dim));
  options.scale = static_cast<double>(scale);  // 0: the default
  const auto reduce = random.pick(
      std::vector<tersekv::GroupReduce>{tersekv::GroupReduce::sum, tersekv::GroupReduce::sum,
                                        tersekv::GroupReduce::mean, tersekv::GroupReduce::max});
  options.group_reduce = support::of_reference(reduce);
  support::CacheUnderTest<Policy, Codec> cache(
      {.num_q_heads = q_heads,
       .num_kv_heads = shape.kv_heads,
       .head_dim = shape.head_dim,
       .budget = tersekv::Budget(std::span<const Index>(budgets)),
       .layer = kLayer,
       .scale = scale,
       .group_reduce = reduce,
       .page_size = support::kTracePage},
      setup.policy);
  std::vector<reference::Head> heads;
  std::vector<bool> open(static_cast<std::size_t>(shape.kv_heads), true);
  std::vector<std::size_t> events(open.size());
  for (Index h = 0; h < shape.kv_heads; ++h) {
    heads.emplace_back(setup.reference(budgets[static_cast<std::size_t>(h)]), options);
  }
  Tolerance limits = tolerance<Codec>(setup.merges);
  limits.relative *= setup.error_growth;
  limits.absolute *= setup.error_growth;
  INFO(random << ", " << shape.kv_heads << " KV heads, group " << shape.group << ", head_dim "
              << shape.head_dim << ", scale " << scale << ", budget " << budgets[0] << ", "
              << tokens << " tokens, compress_every " << every);

  std::vector<float> out(data.q.size());
  for (Index done = 0; done < tokens;) {
    const Index rows = std::min(random.integer(1, largest_call), tokens - done);
    const auto view = [&](const std::vector<float>& x, Index count) {
      return tersekv::nhd_view(x.data() + done * count * shape.head_dim, rows, count,
                               shape.head_dim);
    };
    cache.extend(
        tersekv::Chunk<float>{
            .q = view(data.q, q_heads),
            .k = view(data.k, shape.kv_heads),
            .v = view(data.v, shape.kv_heads),
            .out = tersekv::nhd_view(out.data() + done * q_heads * shape.head_dim, rows, q_heads,
                                     shape.head_dim),
            .token_scores = {data.scores.data() + done * shape.kv_heads, shape.kv_heads}},
        {.compress_every = every});
    for (Index h = 0; h < shape.kv_heads; ++h) {
      if (!open[static_cast<std::size_t>(h)]) continue;
      reference::Head& head = heads[static_cast<std::size_t>(h)];
      const auto part = reference::make_tokens(
          data.q.data() + done * q_heads * shape.head_dim,
          data.k.data() + done * shape.kv_heads * shape.head_dim,
          data.v.data() + done * shape.kv_heads * shape.head_dim, rows, shape.kv_heads, shape.group,
          shape.head_dim, h,
          Policy::needs_token_scores ? data.scores.data() + done * shape.kv_heads : nullptr);
      const auto want = head.extend(part, every);
      if (head.margin().smallest < limits.margin) {
        open[static_cast<std::size_t>(h)] = false;
        continue;
      }
      INFO("KV head " << h << " after " << done + rows << " tokens");
      for (Index r = 0; r < rows; ++r) {
        for (Index g = 0; g < shape.group; ++g) {
          const float* row =
              out.data() + ((done + r) * q_heads + h * shape.group + g) * shape.head_dim;
          REQUIRE(support::close_all(
              std::vector<float>(row, row + shape.head_dim),
              want[static_cast<std::size_t>(r)].outputs[static_cast<std::size_t>(g)],
              limits.relative, limits.absolute));
        }
      }
      compare_entries(cache.entries(0, h), head, limits, tally);
      events[static_cast<std::size_t>(h)] = head.events().size();
    }
    done += rows;
  }
  ++tally.traces;
  tally.completed += std::all_of(open.begin(), open.end(), [](bool x) { return x; });
  for (const reference::Head& head : heads) tally.ties += head.margin().exact_ties;
  for (const std::size_t of_head : events) tally.events += static_cast<long>(of_head);
}

/// Whether enough traces were compared to their end. Where only some are run of each setup, many of
/// them may by chance end at a choice that rounding decides.
inline bool enough(const Tally& tally, double completed) {
  const double expected = completed * tally.traces;
  return tally.completed >= expected - support::kTraceSlack * std::sqrt(expected);
}

/// `count` traces of one setup (or one in kOneTraceIn of them), half of them with many ties.
template <class Codec, class Policy>
void run_traces(const Setup<Policy>& setup, int count, std::uint64_t seed, Tally& tally) {
  support::require_device();
  for (int i = 0; i < (count + support::kOneTraceIn - 1) / support::kOneTraceIn; ++i) {
    support::Random random(seed + static_cast<std::uint64_t>(i));
    run_trace<Codec>(setup, random, tally, setup.ties && i % 2 == 1);
  }
}

/// The same, with what they must come to in all: the share `completed` of them compared to its end,
/// as every choice was clear, and at least `entries` entries a trace.
template <class Codec, class Policy>
Tally agree(const Setup<Policy>& setup, int count, std::uint64_t seed, double completed,
            long entries) {
  Tally tally;
  run_traces<Codec>(setup, count, seed, tally);
  CAPTURE(tally.traces, tally.completed, tally.entries, tally.ties, tally.events);
  CHECK(enough(tally, completed));
  CHECK(tally.entries > entries * tally.traces);
  // What only came and stayed is no test of who leaves.
  if (setup.evicts) CHECK(tally.events > tally.traces);
  return tally;
}

}  // namespace trace
