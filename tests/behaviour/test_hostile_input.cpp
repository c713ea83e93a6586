// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <tersekv/tersekv.hpp>

#include "conformance.hpp"
#include "refusal.hpp"

// Tokens, views and numbers that make no sense are refused, and the cache stays as it was
// (`conformance: a call that is refused changes nothing` looks at that closely, for every policy).

namespace {

using namespace tersekv;
using conformance::Tokens;
using support::kInfinity;
using support::kNaN;
using support::refused;

const CacheConfig kConfig = {
    .num_sequences = 2, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 10, .budget = 24};

/// A cache with 30 tokens in sequence 0, four more at hand, and a call to try.
template <class Cache>
struct Trial {
  explicit Trial(Cache made) : cache(std::move(made)) {
    cache.extend(past.all());
    cache.extend(past.all(1));
  }
  /// The cache refuses the chunk with `words` and forgets nothing of what it knew.
  support::Verdict operator()(const std::vector<std::string>& words) {
    const std::vector<Entry> before = cache.entries(0, 1);
    const Index seen = cache.tokens_seen(0), bytes = cache.bytes();
    const support::Verdict verdict = refused([&] { cache.extend(chunk, options); }, words);
    if (!verdict) return verdict;
    const std::vector<Entry> after = cache.entries(0, 1);
    bool same =
        cache.tokens_seen(0) == seen && cache.bytes() == bytes && before.size() == after.size();
    for (std::size_t i = 0; same && i < before.size(); ++i) {
      same = before[i].position == after[i].position && before[i].key == after[i].key;
    }
    return same ? verdict : support::rejected("the cache has changed");
  }
  support::Random random{91};
  Cache cache;
  Tokens past{random, kConfig, 30}, tokens{random, kConfig, 4};
  Chunk<float> chunk = tokens.all();
  ExtendOptions options;
};
template <class Cache>
Trial(Cache) -> Trial<Cache>;

KVCache<H2O> h2o() { return KVCache<H2O>(kConfig, make_h2o()); }

TEST_CASE("hostile: NaN, infinities and numbers beyond 1e15 are refused, with their place") {
  for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity, 1.001e15f, -1.001e15f, 3e38f}) {
    CAPTURE(bad);
    const auto with = [&](std::vector<float> Tokens::*member,
                          const std::vector<std::string>& words) {
      Trial trial(h2o());
      (trial.tokens.*member)[(trial.tokens.*member).size() - 3] = bad;
      return trial(words);
    };
    CHECK(with(&Tokens::q, {"q of sequence 0, token 3, head 5, element 7", "finite"}));
    CHECK(with(&Tokens::k, {"k of sequence 0, token 3, head 1, element 7", "finite"}));
    CHECK(with(&Tokens::v, {"v of sequence 0, token 3, head 1, element 7", "finite"}));
  }
  Trial edge(h2o());
  edge.tokens.q[5] = edge.tokens.k[5] = edge.tokens.v[5] = kMaxMagnitude;
  CHECK_NOTHROW(edge.cache.extend(edge.chunk));
  for (const float x : edge.tokens.out) CHECK(support::is_finite(x));
}

TEMPLATE_TEST_CASE("hostile: what half cannot hold is refused where it would be stored", "", Half,
                   float) {
  using V = std::conditional_t<std::is_same_v<TestType, Half>, float, Half>;
  const bool half_keys = std::is_same_v<TestType, Half>;
  for (const float big : {65505.0f, -65520.0f, 1e6f}) {
    Trial trial(KVCache<H2O, TestType, V>(kConfig, make_h2o()));
    trial.tokens.k[4] = half_keys ? big : 1;
    trial.tokens.v[4] = half_keys ? 1 : big;
    CHECK(trial({half_keys ? "k of sequence 0, token 0" : "v of sequence 0, token 0", "65504"}));
  }
  Trial trial(KVCache<H2O, TestType, V>(kConfig, make_h2o()));
  trial.tokens.k[4] = trial.tokens.v[4] = -65504;
  trial.tokens.q[4] = 65505;  // queries are not stored
  CHECK_NOTHROW(trial.cache.extend(trial.chunk));
}

TEMPLATE_TEST_CASE("hostile: NaN and infinity in 16 bits are refused, too", "", Half, BFloat16) {
  const TestType bad[] = {from_float<TestType>(kNaN), from_float<TestType>(kInfinity),
                          from_float<TestType>(-kInfinity)};
  for (const TestType x : bad) {
    KVCache<Full> cache({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2});
    TestType good[2] = {from_float<TestType>(1), from_float<TestType>(2)}, out[2];
    TestType wrong[2] = {good[0], x};
    const auto view = [](TestType* data) { return nhd_view(data, 1, 1, 2); };
    const auto extend = [&](TestType* q, TestType* k, TestType* v) {
      return [&cache, &view, &out, q, k, v] {
        cache.extend<TestType>(view(q), view(k), view(v), view(out));
      };
    };
    CHECK(refused(extend(wrong, good, good), {"q of sequence 0, token 0", "NaN or infinity"}));
    CHECK(refused(extend(good, wrong, good), {"k of sequence 0, token 0", "NaN or infinity"}));
    CHECK(refused(extend(good, good, wrong), {"v of sequence 0, token 0", "NaN or infinity"}));
    CHECK(cache.tokens_seen(0) == 0);
    CHECK_NOTHROW(extend(good, good, good)());
  }
}

TEST_CASE("hostile: views of other extents, and null pointers, are refused") {
  const auto with = [](auto&& change, const std::vector<std::string>& words) {
    Trial trial(h2o());
    change(trial.chunk);
    return trial(words);
  };
  using C = Chunk<float>;
  CHECK(with([](C& c) { c.q.tokens = 3; }, {"q", "[4, 6, 10]", "[3, 6, 10]"}));
  CHECK(with([](C& c) { c.q.heads = 2; }, {"q", "[4, 6, 10]", "[4, 2, 10]"}));
  CHECK(with([](C& c) { c.k.heads = 6; }, {"k", "[4, 2, 10]", "[4, 6, 10]"}));
  CHECK(with([](C& c) { c.k.head_dim = 9; }, {"k", "[4, 2, 10]", "[4, 2, 9]"}));
  CHECK(with([](C& c) { c.v.tokens = 5; }, {"v", "[4, 2, 10]", "[5, 2, 10]"}));
  CHECK(with([](C& c) { c.v.head_dim = 0; }, {"v", "[4, 2, 10]", "[4, 2, 0]"}));
  CHECK(with([](C& c) { c.out.tokens = 0; }, {"out", "[4, 6, 10]", "[0, 6, 10]"}));
  CHECK(with([](C& c) { c.out.heads = -6; }, {"out", "[4, 6, 10]", "[4, -6, 10]"}));
  CHECK(with([](C& c) { c.q.data = nullptr; }, {"q", "null"}));
  CHECK(with([](C& c) { c.k.data = nullptr; }, {"k", "null"}));
  CHECK(with([](C& c) { c.v.data = nullptr; }, {"v", "null"}));
  CHECK(with([](C& c) { c.out.data = nullptr; }, {"out", "null"}));
  CHECK(with([](C& c) { c.k.tokens = -1; }, {"tokens", "-1"}));
}

TEST_CASE("hostile: the stride between the tokens of one token may be any number") {
  const auto one_token = [](Chunk<float> chunk, Index stride) {
    for (auto* view : {&chunk.q, &chunk.k, &chunk.v}) {
      *view = view->rows(0, 1);
      view->token_stride = stride;
    }
    chunk.out = chunk.out.rows(0, 1);
    chunk.out.token_stride = stride;
    return chunk;
  };
  Trial trial(h2o());
  Index seen = 30;
  for (const Index stride :
       {std::numeric_limits<Index>::min(), Index{0}, std::numeric_limits<Index>::max()}) {
    trial.chunk = one_token(trial.chunk, stride);
    trial.cache.extend(trial.chunk);
    CHECK(trial.cache.tokens_seen(0) == ++seen);
  }

  const Chunk<float> apart = trial.chunk;
  for (const Index shift : {0, 3, -3}) {
    trial.chunk.out.data = const_cast<float*>(apart.k.data) + shift;
    CHECK(trial({"out", "overlaps"}));
  }
}

TEST_CASE("hostile: sequences, heads and options that do not exist are refused") {
  for (const Index s : {Index{-1}, Index{2}, kUnlimited, std::numeric_limits<Index>::min()}) {
    Trial trial(h2o());
    trial.chunk.sequence = s;
    const std::vector<std::string> words = {"sequence", "0 to 1", std::to_string(s)};
    CHECK(trial(words));
    auto& cache = trial.cache;
    CHECK(refused([&] { cache.append(s, trial.chunk.k, trial.chunk.v); }, words));
    CHECK(refused([&] { cache.attend(s, trial.chunk.q, trial.chunk.out); }, words));
    CHECK(refused([&] { cache.observe(s, trial.chunk.q); }, words));
    CHECK(refused([&] { cache.observe(s, AttentionRows<const float>{}); }, words));
    CHECK(refused([&] { cache.compress(s); }, words));
    CHECK(refused([&] { cache.clear(s); }, words));
    CHECK(refused([&] { cache.tokens_seen(s); }, words));
    CHECK(refused([&] { cache.length(s, 0); }, words));
    CHECK(refused([&] { cache.entries(s, 0); }, words));
    CHECK(refused([&] { cache.length(0, s); }, {"kv_head", "0 to 1", std::to_string(s)}));
    CHECK(refused([&] { cache.counts(0, s); }, {"kv_head"}));
    CHECK(refused([&] { cache.entries(0, s); }, {"kv_head"}));
    CHECK(refused([&] { cache.head(0, s); }, {"kv_head"}));
  }
  for (const Index every : {Index{-2}, Index{-100}, std::numeric_limits<Index>::min()}) {
    Trial trial(h2o());
    trial.options.compress_every = every;
    CHECK(trial({"compress_every", "kNever", std::to_string(every)}));
  }
  Trial trial(h2o());
  const Chunk<float> twice[] = {trial.chunk, trial.chunk};
  CHECK(refused([&] { trial.cache.extend<float>(twice); }, {"different sequences", "sequence 0"}));
  trial.options.compress_every = kUnlimited;  // more than there will ever be is no mistake
  CHECK_NOTHROW(trial.cache.extend(trial.chunk, trial.options));
}

TEST_CASE("hostile: token scores that are missing or not finite are refused") {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    Trial trial(KVCache<KVzap>(kConfig, make_kvzap()));
    trial.tokens.scores.back() = bad;
    CHECK(trial({"token_scores", "finite"}));
  }
  Trial trial(KVCache<KVzap>(kConfig, make_kvzap()));
  trial.chunk.token_scores = {};
  CHECK(trial({"token_scores", "none"}));
  CHECK(refused([&] { trial.cache.append(0, trial.chunk.k, trial.chunk.v); }, {"token_scores"}));
  trial.chunk.token_scores = {trial.tokens.scores.data()};  // every token the first one's
  CHECK(trial({"token_scores", "stride"}));
}

TEST_CASE("hostile: zero tokens are no mistake and change nothing") {
  Trial trial(h2o());
  const std::vector<Entry> before = trial.cache.entries(0, 0);
  const Chunk<float> none = trial.tokens.chunk(0, 0);
  const Chunk<float> by_heads{.q = hnd_view(trial.tokens.q.data(), 0, 6, 10),
                              .k = hnd_view(trial.tokens.k.data(), 0, 2, 10),
                              .v = hnd_view(trial.tokens.v.data(), 0, 2, 10),
                              .out = hnd_view(trial.tokens.out.data(), 0, 6, 10)};
  CHECK_NOTHROW(trial.cache.extend(none));
  CHECK_NOTHROW(trial.cache.extend(by_heads));
  CHECK_NOTHROW(trial.cache.append(0, none.k, none.v));
  CHECK_NOTHROW(trial.cache.attend(0, none.q, none.out));
  const AttentionRows<float> no_rows{trial.tokens.out.data(), 0, 0, 0};
  CHECK_NOTHROW(trial.cache.attend(0, by_heads.q, by_heads.out, {.rows = no_rows}));
  CHECK(refused(
      [&] {
        trial.cache.attend(0, by_heads.q, by_heads.out, {.rows = {no_rows.data, 1}});
      },
      {"rows", "expected 0, got 1"}));
  CHECK_NOTHROW(trial.cache.observe(0, none.q));
  CHECK_NOTHROW(trial.cache.observe(0, AttentionRows<const float>{}));
  CHECK_NOTHROW(trial.cache.extend(std::span<const Chunk<float>>{}));
  CHECK(trial.cache.tokens_seen(0) == 30);
  CHECK(trial.cache.entries(0, 0).size() == before.size());
  KVCache<H2O> empty(kConfig, make_h2o());
  CHECK_NOTHROW(empty.compress(0));
  CHECK(empty.entries(0, 0).empty());
  CHECK(empty.keep_ratio() == 1);
  CHECK(refused([&] { empty.attend(0, trial.chunk.q.rows(0, 1), trial.chunk.out.rows(0, 1)); },
                {"tokens of q", "got 1"}));
}

TEST_CASE("hostile: a sequence beyond 2^31 - 1 tokens is a length_error") {
  Trial trial(h2o());
  trial.chunk.k.tokens = (Index{1} << 31) - 1 - 29;  // refused before anything is read
  CHECK(support::refused_with<std::length_error>([&] { trial.cache.extend(trial.chunk); },
                                                 {"2^31", "30 + "}));
  trial.chunk.k.tokens = kUnlimited;
  CHECK(
      support::refused_with<std::length_error>([&] { trial.cache.extend(trial.chunk); }, {"2^31"}));
  CHECK(trial.cache.tokens_seen(0) == 30);
}

TEST_CASE("hostile: more queries or rows than fresh tokens are refused") {
  Trial trial(h2o());
  auto& cache = trial.cache;
  const auto attend = [&](Index rows) {
    return [&cache, &trial, rows] {
      cache.attend(0, trial.chunk.q.rows(0, rows), trial.chunk.out.rows(0, rows));
    };
  };
  CHECK_NOTHROW(attend(1)());  // the latest token is still the last slot's
  CHECK(refused(attend(2), {"tokens of q", "0 to 1", "got 2"}));
  cache.append(0, trial.chunk.k.rows(0, 3), trial.chunk.v.rows(0, 3));
  CHECK_NOTHROW(attend(3)());
  CHECK(refused(attend(4), {"tokens of q", "0 to 3", "got 4"}));
  CHECK(refused([&] { cache.observe(0, trial.chunk.q); }, {"tokens of q", "0 to 3", "got 4"}));
  const float row[64] = {};
  CHECK(refused(
      [&] {
        cache.observe(0, AttentionRows<const float>{row, 4, 8, 8});
      },
      {"rows", "0 to 3", "got 4"}));
  CHECK(refused(
      [&] {
        cache.observe(0, AttentionRows<const float>{nullptr, 1, 8, 8});
      },
      {"rows", "null"}));
}

}  // namespace
