// SPDX-License-Identifier: Apache-2.0

// What an engine writes, beyond what the other tests already do: it must compile, and mean what it
// says.

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <stdexcept>
#include <tersekv/tersekv.hpp>
#include <utility>
#include <vector>

#include "counting_resource.hpp"
#include "support/random.hpp"

namespace {

using namespace tersekv;

const CacheConfig kConfig{
    .num_sequences = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8, .budget = 16};

struct Rows {
  explicit Rows(Index tokens, std::uint64_t seed) : count(tokens) {
    support::Random random(seed);
    q = random.normals(tokens * 4 * 8);
    k = random.normals(tokens * 2 * 8);
    v = random.normals(tokens * 2 * 8);
    out.resize(q.size());
  }
  Chunk<float> chunk(Index sequence) {
    return {.sequence = sequence,
            .q = nhd_view<const float>(q.data(), count, 4, 8),
            .k = nhd_view<const float>(k.data(), count, 2, 8),
            .v = nhd_view<const float>(v.data(), count, 2, 8),
            .out = nhd_view(out.data(), count, 4, 8)};
  }
  Index count;
  std::vector<float> q, k, v, out;
};

TEST_CASE("interface: a batch is any contiguous range of chunks") {
  std::vector<std::vector<float>> outs;
  for (int form = 0; form < 3; ++form) {
    KVCache<ZSMerge> cache(kConfig);
    Rows one(5, 1), two(30, 2);
    const std::array chunks{one.chunk(0), two.chunk(1)};
    if (form == 0) cache.extend(std::vector(chunks.begin(), chunks.end()));
    if (form == 1) cache.extend(chunks);
    if (form == 2) cache.extend(std::span<const Chunk<float>>(chunks));
    CHECK(cache.tokens_seen(0) == 5);
    CHECK(cache.tokens_seen(1) == 30);
    outs.push_back(two.out);
  }
  CHECK(outs[1] == outs[0]);
  CHECK(outs[2] == outs[0]);
}

TEST_CASE("interface: a cache that is const can be looked into") {
  KVCache<H2O, Half> cache(kConfig);
  Rows rows(30, 3);
  cache.extend(rows.chunk(0));
  const auto& look = std::as_const(cache);
  const auto entries = look.entries(0, 1);
  const auto head = look.head(0, 1);
  REQUIRE(entries.size() == 16);
  REQUIRE(head.length() == 16);
  double found = 0;
  for (Index i = 0; i < head.length(); ++i) {
    for (const Entry& entry : entries) {
      if (entry.position != head.position(i)) continue;
      ++found;
      CHECK(entry.key[3] == head.key(i, 3));
      CHECK(entry.key[3] == to_float(head.key_page(0)[3 * head.page_size() + i]));
      CHECK(entry.value[5] == to_float(head.value_page(0)[i * head.head_dim() + 5]));
      CHECK(entry.score == look.policy().score(head, i));
      CHECK(entry.weight == 1);
    }
  }
  CHECK(found == 16);
  CHECK(look.pool().pages() == 2);
  MemoryUsage twice = look.memory();
  twice += look.memory();
  CHECK(twice.total() == 2 * look.bytes());
}

TEST_CASE("interface: the rows that attend writes can be handed to observe as they are") {
  KVCache<H2O> verbs(kConfig), whole(kConfig);
  Rows rows(12, 4);
  whole.extend(rows.chunk(0));
  const auto chunk = rows.chunk(0);
  verbs.append(0, chunk.k, chunk.v);
  std::vector<float> room(12 * 2 * 16);
  const AttentionRows<float> attention{room.data(), 12, 2 * 16, 16};
  verbs.attend(0, chunk.q, chunk.out, {.rows = attention});
  verbs.observe(0, attention);
  verbs.compress(0);
  for (const Index h : {0, 1}) {
    const auto got = verbs.entries(0, h), want = whole.entries(0, h);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].score == want[i].score);
  }
}

#if defined(_OPENMP)
TEST_CASE("interface: OpenMP's own number of threads is the default") {
  KVCache<ZSMerge, float, float, OpenMPExecutor> threads(kConfig);
  std::vector<KVCache<ZSMerge, float, float, OpenMPExecutor>> layers;
  layers.emplace_back(kConfig);
  KVCache<ZSMerge> serial(kConfig);
  Rows a(30, 5), b(30, 5);
  threads.extend(a.chunk(1));
  serial.extend(b.chunk(1));
  CHECK(a.out == b.out);
}
#endif

TEST_CASE("interface: a cache that was moved from refuses everything") {
  KVCache<H2O> from(kConfig);
  Rows rows(3, 6);
  from.extend(rows.chunk(0));
  KVCache<H2O> to(std::move(from));
  CHECK(to.length(0, 0) == 3);
  // NOLINTBEGIN: this is what is tested
  CHECK_THROWS_AS(from.length(0, 0), std::invalid_argument);
  CHECK_THROWS_AS(from.extend(rows.chunk(0)), std::invalid_argument);
  CHECK_THROWS_AS(from.compress(0), std::invalid_argument);
  CHECK_THROWS_AS(from.clone(), std::invalid_argument);
  CHECK_THROWS_AS(from.trim(), std::invalid_argument);
  CHECK_THROWS_AS(from.pool(), std::invalid_argument);
  CHECK(from.keep_ratio() == 1);
  // NOLINTEND
}

}  // namespace

TEST_CASE("A cache takes a pool without naming its policy, and says how long its longest head is") {
  tersekv::PagePool pool;
  tersekv::KVCache<tersekv::H2O> cache(
      {.num_sequences = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 8, .budget = {8, 24}},
      pool);
  CHECK(&cache.pool() == &pool);
  CHECK(cache.longest(1) == 0);
  const std::vector<float> kv(2 * 50 * 8, 0.5f);
  const auto rows = tersekv::nhd_view(kv.data(), 50, 2, 8);
  cache.append(1, rows, rows);
  CHECK(cache.longest(1) == 50);
  cache.compress(1);
  CHECK(cache.length(1, 0) == 8);
  CHECK(cache.longest(1) == 24);
  CHECK(cache.longest(0) == 0);
  CHECK_THROWS_AS(cache.longest(2), std::invalid_argument);
}

TEST_CASE("A cache that could not be made leaves the shared pool to caches of other pages") {
  using Cache = tersekv::KVCache<tersekv::Full>;
  const auto config = [](tersekv::Index dim) {
    return tersekv::CacheConfig{.num_q_heads = 2, .num_kv_heads = 2, .head_dim = dim};
  };
  int refused = 0;
  for (bool made = false; !made; refused += made ? 0 : 1) {
    CAPTURE(refused);
    CountingResource resource;
    tersekv::PagePool pool(&resource);
    resource.fail_after(refused);
    try {
      const Cache cache(config(8), {}, pool);
      made = true;
    } catch (const std::bad_alloc&) {
      resource.fail_after(CountingResource::kNever);
      CHECK_NOTHROW(Cache(config(16), {}, pool));
    }
  }
  CHECK(refused > 2);
}
