// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <string>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "conformance.hpp"
#include "refusal.hpp"

// Attention rows, given by an engine or asked for, that make no sense are refused.

namespace {

using namespace tersekv;
using conformance::Tokens;
using support::kInfinity;
using support::kNaN;
using support::refused;

const CacheConfig kConfig = {.num_q_heads = 6, .num_kv_heads = 2, .head_dim = 10, .budget = 25};
constexpr Index kEntries = 29;  // no multiple of any vector's length

/// A cache of 25 entries a head, and four new ones.
struct Trial {
  Trial() {
    cache.extend(past.all());
    cache.append(0, chunk.k, chunk.v);
    REQUIRE(cache.length(0, 0) == kEntries);
  }
  support::Random random{91};
  KVCache<H2O> cache{kConfig, make_h2o()};
  Tokens past{random, kConfig, 30}, tokens{random, kConfig, 4};
  Chunk<float> chunk = tokens.all();
};

TEST_CASE("hostile: attention rows that are not finite are refused") {
  for (const float bad : {kNaN, kInfinity}) {
    Trial trial;
    std::vector<float> rows(2 * 64, 0.1f);
    rows[70] = bad;  // head 1, slot 6
    CHECK(refused(
        [&] {
          trial.cache.observe(0, AttentionRows<const float>{rows.data(), 1, 128, 64});
        },
        {"rows", "finite"}));
  }
}

TEST_CASE("hostile: attention rows that no group can have are refused") {
  for (const float bad : {-0.01f, 100.0f, -100.0f}) {
    Trial trial;
    std::vector<float> rows(2 * 64, 0.1f);
    rows[64 + kEntries - 1] = bad;  // head 1, the last slot
    const auto observe = [&] {
      trial.cache.observe(0, AttentionRows<const float>{rows.data(), 1, 128, 64});
    };
    CHECK(refused(observe, {"rows, row 0, head 1, slot 28",
                            "attention from 0 to 3 (the sum of 3 query heads)"}));
    rows[64 + kEntries - 1] = -0.0f;
    CHECK_NOTHROW(observe());
  }
}

TEST_CASE("hostile: attention rows are held to the way in which they are reduced") {
  // Of one entry, and of all, no more than this.
  const struct {
    GroupReduce reduce;
    float one, all;
    std::string how;
  } cases[] = {{GroupReduce::sum, 3, 3, "sum"},
               {GroupReduce::mean, 1, 1, "mean"},
               {GroupReduce::max, 1, 3, "max"}};
  for (const auto& [reduce, one, all, how] : cases) {
    INFO(how);
    CacheConfig config = kConfig;
    config.group_reduce = reduce;
    KVCache<H2O> cache(config);
    support::Random random(92);
    Tokens tokens(random, config, kEntries);
    cache.append(0, tokens.all().k, tokens.all().v);
    const auto given = [&](std::vector<float> row) {
      row.resize(2 * 64);
      return [&cache, row] {
        cache.observe(0, AttentionRows<const float>{row.data(), 1, 128, 64});
      };
    };
    CHECK_NOTHROW(given({one})());
    CHECK_NOTHROW(given(std::vector<float>(kEntries, all / kEntries))());
    CHECK_NOTHROW(given(std::vector<float>(kEntries, all / kEntries * 1.009f))());  // rounded
    CHECK(refused(given({one * 1.02f}), {"slot 0", how + " of 3 query heads"}));
    CHECK(refused(given(std::vector<float>(kEntries, all / kEntries * 1.02f)),
                  {"rows, row 0, head 0", "adds up to at most", how + " of 3 query heads"}));
  }
}

TEST_CASE("hostile: long attention rows do not add up to more than they are") {
  constexpr Index n = 3 << 23;  // one float for each lane would gain 1 to 5 %
  const std::vector<float> row(static_cast<std::size_t>(n), 1.0f / static_cast<float>(n));
  CHECK(std::fabs(detail::sum_of(row.data(), n) - 1) < 1e-5);
}

TEST_CASE("hostile: attention rows of before a compression are refused after it") {
  Trial trial;
  const std::vector<float> rows(2 * 64, 0.1f);
  const auto observe = [&] {
    trial.cache.observe(0, AttentionRows<const float>{rows.data(), 1, 128, 64});
  };
  trial.cache.compress(0);
  CHECK(refused(observe, {"rows", "expected 0 to 0, as 0 tokens came since the last compression"}));
  CHECK_NOTHROW(trial.cache.observe(0, trial.chunk.q.rows(3, 1)));  // worked out as things are now
  trial.cache.append(0, trial.chunk.k.rows(0, 1), trial.chunk.v.rows(0, 1));
  CHECK_NOTHROW(observe());
}

TEST_CASE("hostile: attend writes no more of a row than a head has entries") {
  Trial trial;
  constexpr Index stride = kEntries + 1;
  std::vector<float> room(2 * stride, -1.0f);
  trial.cache.attend(0, trial.chunk.q.rows(0, 1), trial.chunk.out.rows(0, 1),
                     {.rows = {room.data(), 1, 0, stride}});
  for (std::size_t i = 0; i < room.size(); ++i)
    CHECK((room[i] == -1.0f) == (i % stride == kEntries));
}

TEST_CASE("hostile: attention rows that overlap are refused, read or written") {
  Trial trial;
  std::vector<float> room(400);
  const auto rows = [&](Index count, Index row_stride, Index head_stride) {
    return AttentionRows<float>{room.data(), count, row_stride, head_stride};
  };
  const auto attend = [&](const AttentionRows<float>& into) {
    return [&trial, into] {
      trial.cache.attend(0, trial.chunk.q.rows(0, into.rows), trial.chunk.out.rows(0, into.rows),
                         {.rows = into});
    };
  };
  const auto observe = [&](const AttentionRows<const float>& given) {
    return [&trial, given] { trial.cache.observe(0, given); };
  };
  constexpr Index n = kEntries;
  const std::string each = std::to_string(n) + " numbers each";
  for (const auto& bad : {rows(4, 2 * n, n - 1), rows(4, 2 * n - 1, n), rows(4, n, 4 * n - 1),
                          rows(4, 0, n), rows(1, 0, n - 1), rows(4, 2, 1)}) {
    CHECK(refused(attend(bad), {"rows", each, "row_stride"}));
    CHECK(refused(observe(bad), {"rows", each, "row_stride"}));
  }
  for (const auto& good : {rows(4, 2 * n, n), rows(4, n, 4 * n), rows(1, 0, n)}) {
    CHECK_NOTHROW(attend(good)());
    CHECK_NOTHROW(observe(good)());
  }
}

TEST_CASE("hostile: normalisers and rows that overlap something else are refused") {
  Trial trial;
  const auto& [q, out] = std::pair(trial.chunk.q, trial.chunk.out);
  std::vector<float> room(400);
  const AttentionRows<float> rows{room.data(), 1, 0, kEntries};
  const auto attend = [&](const AttendOutputs& outputs) {
    return [&trial, outputs] {
      trial.cache.attend(0, trial.chunk.q.rows(0, 1), trial.chunk.out.rows(0, 1), outputs);
    };
  };
  CHECK(refused(attend({.lse = out.data}), {"lse", "overlaps"}));
  CHECK(refused(attend({.lse = const_cast<float*>(q.data) + 1}), {"lse", "overlaps"}));
  CHECK(refused(attend({.lse = room.data() + 3, .rows = rows}), {"rows", "overlaps"}));
  CHECK(refused(attend({.rows = {out.data, 1, 0, kEntries}}), {"rows", "overlaps"}));
  CHECK_NOTHROW(attend({.lse = room.data() + 2 * kEntries, .rows = rows})());
  const Index seen = trial.cache.tokens_seen(0);
  for (const float* taken : {trial.chunk.q.data, trial.chunk.k.data, trial.chunk.v.data,
                             static_cast<const float*>(trial.chunk.out.data)}) {
    Chunk<float> bad = trial.chunk;
    bad.lse = const_cast<float*>(taken) + 1;
    CHECK(refused([&] { trial.cache.extend(bad); }, {"lse", "overlaps"}));
  }
  CHECK(trial.cache.tokens_seen(0) == seen);
}

TEST_CASE("hostile: strides that were forgotten are refused") {
  Trial trial;
  const auto still = [](TokenView<const float> view) {
    view.token_stride = 0;
    return view;
  };
  for (const std::string name : {"q", "k", "v"}) {
    Chunk<float> bad = trial.chunk;
    TokenView<const float>& view = name == "q" ? bad.q : (name == "k" ? bad.k : bad.v);
    view = still(view);
    CHECK(refused([&] { trial.cache.extend(bad); }, {name + ": strides", "none of 0", "[0, "}));
  }
  Chunk<float> one = trial.chunk;  // of one token, any stride will do
  for (auto* view : {&one.q, &one.k, &one.v}) *view = still(view->rows(0, 1));
  one.out = one.out.rows(0, 1);
  CHECK_NOTHROW(trial.cache.extend(one));
  one.k.head_stride = 0;
  CHECK(refused([&] { trial.cache.extend(one); }, {"k", "strides"}));
}

TEST_CASE("hostile: attend refuses room for fewer rows than it has queries") {
  Trial trial;
  std::vector<float> rows(4 * 2 * 64);
  const AttentionRows<float> one_row{
      .data = rows.data(), .rows = 1, .row_stride = 128, .head_stride = 64};
  CHECK(refused([&] { trial.cache.attend(0, trial.chunk.q, trial.chunk.out, {.rows = one_row}); },
                {"rows", "4", "got 1"}));
}

}  // namespace
