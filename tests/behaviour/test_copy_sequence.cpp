// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <new>
#include <vector>

#include "counting_resource.hpp"
#include "refusal.hpp"
#include "support/random.hpp"
#include "tersekv/tersekv.hpp"

// A sequence that is copied from another cache goes on as it would have there.

namespace {

using namespace tersekv;

constexpr Index kHeads = 2, kGroup = 3, kDim = 20;

CacheConfig config_of(Index sequences) {
  return {.num_sequences = sequences,
          .num_q_heads = kHeads * kGroup,
          .num_kv_heads = kHeads,
          .head_dim = kDim,
          .budget = {40, 50}};
}

/// Extends the sequence by tokens that depend on the seed alone; what they gave.
template <class Cache>
std::vector<float> extend(Cache& cache, Index sequence, Index tokens, std::uint64_t seed) {
  support::Random random(seed);
  const std::vector<float> q = random.normals(tokens * kHeads * kGroup * kDim),
                           k = random.normals(tokens * kHeads * kDim),
                           v = random.normals(tokens * kHeads * kDim);
  std::vector<float> out(q.size());
  const auto view = [&](auto* data, Index heads) { return nhd_view(data, tokens, heads, kDim); };
  cache.extend(Chunk<float>{.sequence = sequence,
                            .q = view(q.data(), kHeads * kGroup),
                            .k = view(k.data(), kHeads),
                            .v = view(v.data(), kHeads),
                            .out = view(out.data(), kHeads * kGroup)});
  return out;
}

/// Two workers that are one.
struct TwoWorkers {
  int workers() const { return 2; }
  template <class F>
  void run(Index n, F&& f) const {
    for (Index task = n; task-- > 0;) f(task, static_cast<int>(task % 2));
  }
};

template <class Cache>
std::vector<Index> held(const Cache& cache, Index sequence) {
  std::vector<Index> result;
  for (Index h = 0; h < kHeads; ++h) {
    for (const Entry& entry : cache.entries(sequence, h)) result.push_back(entry.position);
  }
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("a sequence copied from another cache goes on as there", "", Full, H2O, SnapKV,
                   MorphKV, ZSMerge, KeepKV) {
  PagePool large(std::pmr::get_default_resource(), PageMemory::large);
  KVCache<TestType> one(config_of(1));
  KVCache<TestType, float, float, TwoWorkers> several(config_of(3), TestType{}, large);
  extend(one, 0, 130, 1);
  for (Index t = 0; t < 5; ++t) extend(one, 0, 1, 2 + static_cast<std::uint64_t>(t));
  extend(several, 2, 7, 20);  // is forgotten
  extend(several, 1, 9, 21);
  const auto neighbour = held(several, 1);
  copy_sequence(one, 0, several, 2);
  CHECK(several.tokens_seen(2) == 135);
  CHECK(held(several, 2) == held(one, 0));
  for (std::uint64_t t = 0; t < 90; ++t) {
    const Index tokens = t == 50 ? 70 : 1;
    const auto there = extend(several, 2, tokens, 30 + t);
    REQUIRE(there == extend(one, 0, tokens, 30 + t));
  }
  CHECK(held(several, 2) == held(one, 0));
  CHECK(held(several, 1) == neighbour);
  // And back: what the one held is forgotten.
  copy_sequence(several, 1, one, 0);
  CHECK(held(one, 0) == neighbour);
  CHECK(extend(one, 0, 1, 3) == extend(several, 1, 1, 3));
  // Within a cache it is `copy`.
  copy_sequence(several, 1, several, 0);
  copy_sequence(several, 1, several, 1);
  CHECK(held(several, 0) == held(several, 1));
}

TEST_CASE("a copied sequence is looked after without being extended first") {
  KVCache<H2O> from(config_of(1)), to(config_of(1));
  extend(from, 0, 400, 1);
  for (Index t = 0; t < 3000; t += 100) {  // what is not compressed yet
    std::vector<float> rows(100 * kHeads * kDim, 0.25f);
    const auto view = nhd_view<const float>(rows.data(), 100, kHeads, kDim);
    from.append(0, view, view);
  }
  copy_sequence(from, 0, to, 0);
  const std::vector<float> q(kHeads * kGroup * kDim, 0.5f);
  const auto view = nhd_view(q.data(), 1, kHeads * kGroup, kDim);
  for (KVCache<H2O>* each : {&from, &to}) {
    each->observe(0, view);
    each->compress(0);
  }
  CHECK(held(to, 0) == held(from, 0));
}

TEST_CASE("a sequence is copied between caches of one form alone") {
  const KVCache<MorphKV> from(config_of(2));
  KVCache<MorphKV> to(config_of(1));
  const auto refused = [&](auto&& change, const char* what) {
    CacheConfig config = config_of(1);
    change(config);
    KVCache<MorphKV> other(config);
    return support::refused([&] { copy_sequence(from, 0, other, 0); }, {what});
  };
  CHECK(support::refused([&] { copy_sequence(from, 2, to, 0); }, {"sequence", "0 to 1", "2"}));
  CHECK(support::refused([&] { copy_sequence(from, 0, to, 1); }, {"sequence", "0 to 0", "1"}));
  CHECK(refused([](CacheConfig& c) { c.num_q_heads = kHeads; }, "num_q_heads"));
  CHECK(refused([](CacheConfig& c) { c.num_kv_heads = 1, c.budget = 40; }, "num_kv_heads"));
  CHECK(refused([](CacheConfig& c) { c.head_dim = 8; }, "head_dim"));
  CHECK(refused([](CacheConfig& c) { c.page_size = 32; }, "page_size"));
  CHECK(refused([](CacheConfig& c) { c.layer = 1; }, "layer"));
  CHECK(refused([](CacheConfig& c) { c.scale = 0.5f; }, "scale"));
  CHECK(refused([](CacheConfig& c) { c.group_reduce = GroupReduce::max; }, "group_reduce"));
  CHECK(refused([](CacheConfig& c) { c.budget = {40, 51}; }, "budget"));
  // Of parameters, too, that change nothing of its form.
  const auto of_policy = [](auto policy, auto another) {
    using Cache = KVCache<decltype(policy)>;
    const Cache one(config_of(1), policy);
    Cache same(config_of(1), policy), other(config_of(1), another);
    copy_sequence(one, 0, same, 0);
    return support::refused([&] { copy_sequence(one, 0, other, 0); }, {"policy", "parameters"});
  };
  CHECK(of_policy(make_morphkv({.recent = 16}), make_morphkv({.recent = 15})));
  CHECK(of_policy(make_zsmerge({.residual = 8}), make_zsmerge({.residual = 2})));
  CHECK(of_policy(make_keepkv({.decay = 0.9f}), make_keepkv({.decay = 0.8f})));
  CHECK(of_policy(make_streaming_llm({.sinks = 4}), make_streaming_llm({.sinks = 2})));
}

TEST_CASE("a copy from another cache that gets no memory changes nothing") {
  KVCache<Full> from(config_of(1));
  extend(from, 0, 500, 1);
  bool done = false;
  for (Index successes = 0; !done; ++successes) {
    REQUIRE(successes < 50);
    CountingResource resource;
    KVCache<Full> to(config_of(1), {}, {}, &resource);
    extend(to, 0, 3, 2);
    to.pool().trim();
    const auto before = held(to, 0);
    resource.fail_after(successes);
    try {
      copy_sequence(from, 0, to, 0);
      done = true;
      CHECK(successes > 0);
    } catch (const std::bad_alloc&) {
      CHECK(held(to, 0) == before);
      resource.fail_after(CountingResource::kNever);
      copy_sequence(from, 0, to, 0);
    }
    CHECK(held(to, 0) == held(from, 0));
  }
}
