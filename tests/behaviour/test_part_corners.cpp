// SPDX-License-Identifier: Apache-2.0

// Corners of single parts that random traces do not reach: legal calls in unusual orders, and
// parameters at their ends.

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

namespace {

using namespace tersekv;

struct Rows {
  Rows(Index tokens, Index dim, std::uint64_t seed) : count(tokens), width(dim) {
    support::Random random(seed);
    for (auto* x : {&q, &k, &v}) *x = random.normals(tokens * dim);
    scores.resize(static_cast<std::size_t>(tokens));
    out.resize(q.size());
  }
  Chunk<float> chunk(Index first, Index n) {
    const auto view = [&](const std::vector<float>& x) {
      return nhd_view<const float>(x.data(), count, 1, width).rows(first, n);
    };
    return {.q = view(q),
            .k = view(k),
            .v = view(v),
            .out = nhd_view(out.data(), count, 1, width).rows(first, n),
            .token_scores = {scores.data() + first, 1}};
  }
  Index count, width;
  std::vector<float> q, k, v, out, scores;
};

CacheConfig one_head(Index dim, Index budget) {
  return {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim, .budget = budget};
}

template <class Cache>
std::vector<Index> positions(const Cache& cache) {
  std::vector<Index> result;
  for (const Entry& entry : cache.entries(0, 0)) result.push_back(entry.position);
  return result;
}

using Merging = Policy<TokenScore, BelowThreshold, RightNeighbour>;

TEST_CASE("a cache that was never filled can be compressed, whatever the parts") {
  BelowThreshold below;
  below.protection.recent = 0;
  KVCache<Policy<PredictedMass, BelowThreshold, ZipMerge>> one(
      one_head(4, 8), Policy<PredictedMass, BelowThreshold, ZipMerge>({}, below));
  KVCache<KeepKVPair> two(one_head(4, 16));
  KVCache<SnapKV> three(one_head(4, 40));
  KVCache<KVzap> four(one_head(4, 8));
  CHECK_NOTHROW(one.compress(0));
  CHECK_NOTHROW(one.clone().compress(0));
  CHECK_NOTHROW(two.compress(0));
  CHECK_NOTHROW(three.compress(0));
  CHECK_NOTHROW(four.compress(0));
}

TEST_CASE("below a threshold the lowest score leaves first, then the lower position") {
  // Position 3's value takes up those of 1 and 2, one after the other: the order shows. Whether
  // token 0 has left before (with a share of 0) mixes the slots and must change nothing.
  BelowThreshold below;
  below.threshold = 4;
  below.protection = {.sinks = 1, .recent = 1};
  struct Case {
    float score_1, score_2;
    double want;
  };
  // 1 before 2: (2*1 + 3*2)/5 = 1.6, then (3*1.6 + 4*4)/7. 2 before 1: (2*2 + 4*4)/6 = 10/3, then
  // (3*1 + 4*10/3)/7. Equal, so 1 before 2: (2*1 + 2*2)/4 = 1.5, then (2*1.5 + 4*4)/6.
  for (const Case& c : {Case{2, 3, (3 * 1.6 + 16) / 7}, Case{3, 2, (3 + 4 * (20.0 / 6)) / 7},
                        Case{2, 2, (3 + 16) / 6.0}}) {
    for (const bool sink_leaves : {false, true}) {
      CAPTURE(c.score_1, c.score_2, sink_leaves);
      BelowThreshold selector = below;
      if (sink_leaves) selector.protection.sinks = 0;
      KVCache<Merging> cache(one_head(1, 8), Merging({}, selector));
      Rows rows(5, 1, 1);
      rows.v = {0, 1, 2, 4, 100};
      rows.scores = {0, c.score_1, c.score_2, 4, 9};
      cache.extend(rows.chunk(0, 5), {.compress_every = kNever});
      cache.compress(0);
      const auto entries = cache.entries(0, 0);
      REQUIRE(entries.size() == (sink_leaves ? 2u : 3u));
      CHECK(support::close(entries[entries.size() - 2].value[0], c.want, 1e-6, 0));
    }
  }
}

KVCache<Merging> merging(float threshold, Index recent) {
  BelowThreshold selector;
  selector.threshold = threshold;
  selector.protection = {.sinks = 0, .recent = recent};
  return KVCache<Merging>(one_head(1, 8), Merging({}, selector));
}

TEST_CASE("a score below 0 counts as 0 for its right neighbour") {
  struct Case {
    float victim, neighbour, want;
  };
  // (0 * 10 + 2 * 20) / 2, and the plain mean of a victim and a neighbour of 0 each.
  for (const Case& c : {Case{-3, 2, 20}, Case{-3, 0, 15}}) {
    KVCache<Merging> cache = merging(0, 1);
    Rows rows(3, 1, 1);
    rows.v = {10, 20, 30};
    rows.scores = {c.victim, c.neighbour, 5};
    cache.extend(rows.chunk(0, 3));
    CAPTURE(c.victim, c.neighbour);
    REQUIRE(positions(cache) == std::vector<Index>{1, 2});
    CHECK(cache.entries(0, 0)[0].value[0] == c.want);
    CHECK(cache.counts(0, 0).merges == 1);
  }
}

TEST_CASE("a right neighbour may be in the first slot") {
  KVCache<Merging> cache = merging(2, 2);
  Rows rows(4, 1, 1);
  rows.v = {10, 20, 60, 0};
  rows.scores = {0.5f, 1, 3, 3};
  cache.extend(rows.chunk(0, 3));  // the first token leaves, and the last fills its slot
  REQUIRE(cache.head(0, 0).position(0) == 2);
  cache.extend(rows.chunk(3, 1));
  CHECK(positions(cache) == std::vector<Index>{2, 3});
  CHECK(cache.counts(0, 0).merges == 2);
  CHECK(cache.counts(0, 0).evictions == 0);
  const double second = (0.5 * 10 + 20) / 1.5;
  CHECK(support::close(cache.entries(0, 0)[0].value[0], (second + 3 * 60) / 4, 1e-6, 0));
}

TEST_CASE("a victim with nobody to its right is lost") {
  KVCache<Merging> cache = merging(0, 0);
  Rows rows(3, 1, 1);
  rows.v = {10, 20, 30};
  rows.scores = {1, 2, -1};
  cache.extend(rows.chunk(0, 3));
  CHECK(positions(cache) == std::vector<Index>{0, 1});
  CHECK(cache.entries(0, 0)[0].value[0] == 10);
  CHECK(cache.entries(0, 0)[1].value[0] == 20);
  CHECK(cache.counts(0, 0).evictions == 1);
  CHECK(cache.counts(0, 0).merges == 0);
}

TEST_CASE("SnapKV takes no run of single tokens for a prompt") {
  const SnapKVOptions options{.window = 4, .kernel = 3};
  Rows rows(60, 8, 2);
  KVCache<SnapKV> steps(one_head(8, 12), make_snapkv(options));
  steps.extend(rows.chunk(0, 40));
  REQUIRE(steps.length(0, 0) == 12);
  for (Index t = 40; t < 50; ++t) steps.extend(rows.chunk(t, 1), {.compress_every = kNever});
  steps.compress(0);
  CHECK(steps.length(0, 0) == 22);
  // A token alone behind a prompt: the prompt's last queries still decide.
  KVCache<SnapKV> behind(one_head(8, 12), make_snapkv(options));
  behind.extend(rows.chunk(0, 40), {.compress_every = kNever});
  const auto before = behind.entries(0, 0);
  KVCache<SnapKV> alone = behind.clone();
  behind.extend(rows.chunk(40, 1));
  CHECK(behind.length(0, 0) == 12);
  alone.compress(0);
  // The window has moved on by one; of the others the best stay, as without the token.
  const auto with = positions(behind), without = positions(alone);
  int same = 0;
  for (const Index p : with) same += std::count(without.begin(), without.end(), p) > 0;
  CHECK(same >= 10);
}

TEST_CASE("MorphKV's window holds 0 for an entry that a row did not see, also when shown again") {
  const std::vector<float> zeros(16);
  const auto last = [&](Index n) { return nhd_view(zeros.data(), n, 1, 1); };
  const auto score_of_newest = [&](int repeats) {
    KVCache<MorphKV> cache(one_head(1, 100), make_morphkv({.recent = 3}));
    cache.append(0, last(8), last(8));
    for (int i = 0; i < repeats; ++i) cache.observe(0, last(1));
    cache.observe(0, last(3));
    cache.observe(0, last(1));
    return cache.entries(0, 0).back().score;
  };
  // The last three rows: of the second last query, and twice of the last.
  CHECK(score_of_newest(0) == 0.25f);
  CHECK(score_of_newest(3) == 0.25f);
}

TEST_CASE("equal keys are the most similar ones for any head_dim, and the first of them merge") {
  for (const Index dim : {4, 31, 33, 64, 128}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      Rows rows(12, dim, 100 + seed);
      const auto copy = [&](Index from, Index to) {
        std::copy_n(rows.k.begin() + from * dim, dim, rows.k.begin() + to * dim);
      };
      copy(0, 1);
      copy(2, 3);
      copy(4, 5);
      copy(0, 9);
      KVCache<KeepKVPair> cache(one_head(dim, 11), make_keepkv_pair({.recent = 1, .sinks = 0}));
      cache.extend(rows.chunk(0, 12));
      CAPTURE(dim, seed);
      REQUIRE(positions(cache) == std::vector<Index>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    }
  }
}

TEST_CASE("an append of no tokens is none, also to SnapKV") {
  Rows rows(40, 8, 5);
  std::vector<std::vector<Index>> kept;
  for (const bool with : {false, true}) {
    KVCache<SnapKV> cache(one_head(8, 12), make_snapkv({.window = 4, .kernel = 3}));
    const auto chunk = rows.chunk(0, 40);
    cache.append(0, chunk.k, chunk.v);
    if (with) cache.append(0, chunk.k.rows(40, 0), chunk.v.rows(40, 0));
    cache.observe(0, chunk.q.rows(39, 1));  // an engine that hands over the last query alone
    cache.compress(0);
    kept.push_back(positions(cache));
  }
  CHECK(kept[0] == kept[1]);
}

TEST_CASE("along_query leaves keys finite for queries and scales however small") {
  for (const float scale : {1e-16f, 1e-8f, 1e-3f}) {
    for (const float size : {0.0f, 2e-15f, 1e-8f, 1.0f}) {
      CacheConfig config = one_head(2, 6);
      config.scale = scale;
      KVCache<KeepKV> cache(
          config, make_keepkv({.recent = 1, .sinks = 0, .key_rule = KeyRule::along_query}));
      Rows rows(12, 2, 3);
      for (float& x : rows.q) x = 1;
      rows.q.back() = size;
      rows.q[rows.q.size() - 2] = 0;
      cache.extend(rows.chunk(0, 12));
      for (const Entry& entry : cache.entries(0, 0)) {
        CHECK(support::is_finite(entry.key[0]));
        CHECK(support::is_finite(entry.key[1]));
      }
    }
  }
}

TEST_CASE("scale takes the plain mean of keys where all scores are one") {
  // Queries of zero: no logit says by how much a key should grow.
  KVCache<KeepKV> cache(one_head(2, 6),
                        make_keepkv({.recent = 1, .sinks = 0, .key_rule = KeyRule::scale}));
  Rows rows(7, 2, 5);
  for (float& x : rows.q) x = 0;
  cache.extend(rows.chunk(0, 7));
  CHECK(cache.counts(0, 0).merges == 1);
  for (const Entry& entry : cache.entries(0, 0)) {
    if (entry.weight != 2) continue;
    const auto carrier = static_cast<std::size_t>(entry.position);
    bool is_mean = false;
    for (std::size_t victim = 0; victim < 7; ++victim) {
      is_mean |= victim != carrier &&
                 entry.key[0] == 0.5f * rows.k[2 * victim] + 0.5f * rows.k[2 * carrier] &&
                 entry.key[1] == 0.5f * rows.k[2 * victim + 1] + 0.5f * rows.k[2 * carrier + 1];
    }
    CHECK(is_mean);
  }
}

TEST_CASE("WeightedKV takes the plain mean where neither value was ever attended to") {
  const Index tokens = 7;
  Rows rows(tokens, 1, 8);
  KVCache<WeightedKV> cache(one_head(1, 6));
  for (Index t = 0; t < tokens; ++t)
    rows.v[static_cast<std::size_t>(t)] = static_cast<float>(t * t);
  const auto chunk = rows.chunk(0, tokens);
  cache.append(0, chunk.k, chunk.v);
  const std::vector<float> nothing(static_cast<std::size_t>(tokens), 0.0f);
  cache.observe(0, AttentionRows<const float>{nothing.data(), 1, tokens, tokens});
  cache.compress(0);
  REQUIRE(positions(cache) == std::vector<Index>{0, 1, 2, 3, 5, 6});  // past four sinks
  CHECK(cache.entries(0, 0)[4].value[0] == (16.0f + 25.0f) / 2);
}

TEST_CASE("a pooling kernel as long as it may be is one over all entries") {
  Rows rows(200, 4, 4);
  std::vector<std::vector<Index>> kept;
  for (const Index kernel : {Index{401}, Index{2147483647}}) {
    KVCache<SnapKV> cache(one_head(4, 20), make_snapkv({.window = 4, .kernel = kernel}));
    cache.extend(rows.chunk(0, 200));
    kept.push_back(positions(cache));
  }
  CHECK(kept[0] == kept[1]);
  CHECK(kept[0].size() == 20);
}

}  // namespace
