// SPDX-License-Identifier: Apache-2.0

// Outputs that lie over something that is still to be read, where that is not easily seen.

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <tersekv/tersekv.hpp>
#include <utility>
#include <vector>

#include "refusal.hpp"
#include "support/random.hpp"

using support::refused;
using tersekv::from_float;
using tersekv::Half;
using tersekv::Index;
using tersekv::nhd_view;

TEST_CASE("hostile: rows of floats over halves with strides of the same number are refused") {
  constexpr Index kDim = 40, kStride = 64, kRows = 3;
  tersekv::KVCache<tersekv::Full> cache({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = kDim});
  const std::vector<Half> rows(5 * kDim, from_float<Half>(0.5f));
  cache.append(0, nhd_view(rows.data(), 5, 1, kDim), nhd_view(rows.data(), 5, 1, kDim));
  alignas(64) std::array<std::byte, 4 * kRows * kStride> memory{};
  // The second row of attention, from byte 256 on, is the end of the second row of q.
  auto* q = reinterpret_cast<Half*>(memory.data() + 64);
  auto* attention = reinterpret_cast<float*>(memory.data());
  std::vector<Half> out(kRows * kDim);
  CHECK(refused(
      [&] {
        cache.attend<Half>(0, {q, kRows, 1, kDim, kStride, kDim, 1},
                           nhd_view(out.data(), kRows, 1, kDim),
                           {.rows = {attention, kRows, kStride, kStride}});
      },
      {"rows", "overlaps"}));
}

TEST_CASE("hostile: outputs over the scores of tokens are refused") {
  constexpr Index kTokens = 6, kDim = 4;
  tersekv::KVCache<tersekv::KVzap> cache(
      {.num_sequences = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = kDim});
  std::vector<float> rows(kTokens * kDim, 1), out(2 * rows.size()), scores(2 * kTokens, -1);
  const auto given = nhd_view<const float>(rows.data(), kTokens, 1, kDim);
  const auto chunk = [&](Index sequence, float* to, const float* with, float* lse) {
    return tersekv::Chunk<float>{.sequence = sequence,
                                 .q = given,
                                 .k = given,
                                 .v = given,
                                 .out = nhd_view(to, kTokens, 1, kDim),
                                 .token_scores = {with, 1, 1},
                                 .lse = lse};
  };
  const auto extend = [&](std::vector<tersekv::Chunk<float>> chunks) {
    return [&cache, chunks] { cache.extend(chunks); };
  };
  CHECK(refused(extend({chunk(0, out.data(), scores.data(), scores.data() + 2)}),
                {"lse", "overlaps"}));
  CHECK(refused(extend({chunk(0, out.data(), out.data() + 1, nullptr)}), {"out", "overlaps"}));
  CHECK(refused(extend({chunk(0, out.data(), scores.data(), nullptr),
                        chunk(1, out.data() + rows.size(), out.data(), nullptr)}),
                {"chunks", "overlaps"}));
  CHECK(cache.tokens_seen(0) == 0);
  CHECK_NOTHROW(extend({chunk(0, out.data(), scores.data(), scores.data() + kTokens)})());
}

TEST_CASE(
    "hostile: of many chunks the one that writes into another is found, and none by mistake") {
  constexpr Index kChunks = 200, kHeads = 2, kDim = 4, kRow = kHeads * kDim;
  tersekv::KVCache<tersekv::Full> cache(
      {.num_sequences = kChunks, .num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim});
  // Rows of q, k, v and out of one buffer, sequence by sequence, the last sequence first.
  std::vector<float> fused(4 * kChunks * kRow, 0.5f), lse(kChunks * kHeads);
  const auto chunk = [&](Index s) {
    float* row = fused.data() + (kChunks - 1 - s) * 4 * kRow;
    return tersekv::Chunk<float>{.sequence = s,
                                 .q = nhd_view<const float>(row, 1, kHeads, kDim),
                                 .k = nhd_view<const float>(row + kRow, 1, kHeads, kDim),
                                 .v = nhd_view<const float>(row + 2 * kRow, 1, kHeads, kDim),
                                 .out = nhd_view(row + 3 * kRow, 1, kHeads, kDim),
                                 .lse = lse.data() + s * kHeads};
  };
  std::vector<tersekv::Chunk<float>> chunks;
  for (Index s = 0; s < kChunks; ++s) chunks.push_back(chunk((7 * s) % kChunks));
  const auto extend = [&] { cache.extend(chunks); };
  CHECK_NOTHROW(extend());
  for (const auto& [a, b] : {std::pair<std::size_t, std::size_t>{3, 4}, {0, 199}, {150, 20}}) {
    const tersekv::Chunk<float> as_it_was = chunks[a];
    INFO(a << " and " << b);
    const auto other = [&](auto view) { return const_cast<float*>(view.data); };
    for (float* taken : {other(chunks[b].q), other(chunks[b].k) + 1, other(chunks[b].v),
                         other(chunks[b].out) + kRow - 1}) {
      chunks[a].out.data = taken;
      CHECK(refused(extend, {"chunks", "overlaps"}));
      chunks[a] = as_it_was;
    }
    for (float* taken : {other(chunks[b].out) + 2, chunks[b].lse + 1}) {
      chunks[a].lse = taken;
      CHECK(refused(extend, {"chunks", "overlaps"}));
      chunks[a] = as_it_was;
    }
    chunks[a].q = chunks[b].q;  // what is read may be shared
    CHECK_NOTHROW(extend());
    chunks[a] = as_it_was;
    chunks[a].sequence = chunks[b].sequence;
    CHECK(refused(extend, {"chunks", "different sequences",
                           "sequence " + std::to_string(chunks[b].sequence) + " twice"}));
    chunks[a] = as_it_was;
  }
  CHECK(cache.tokens_seen(199) == 4);
}

TEST_CASE("hostile: chunks are apart where no two of their views say otherwise") {
  using tersekv::TokenView;
  support::Random random(12);
  std::vector<float> memory(4000);
  int apart = 0, overlapping = 0;
  for (int round = 0; round < 3000; ++round) {
    // Views of one token, or of rows with gaps that others may lie in, among each other.
    const Index length = random.integer(20, 3000);
    const auto view = [&](Index tokens, Index heads) {
      const Index row = heads * 4, stride = row * random.integer(1, 3);
      const Index at = random.integer(0, length - 1);
      return TokenView<float>{memory.data() + at, tokens, heads, 4, stride, 4, 1};
    };
    std::vector<tersekv::Chunk<float>> chunks(static_cast<std::size_t>(random.integer(2, 6)));
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const Index tokens = random.integer(0, 5);
      chunks[c].sequence = static_cast<Index>(c);
      chunks[c].q = view(tokens, 2);
      chunks[c].k = view(tokens, 1);
      chunks[c].v = view(tokens, 1);
      chunks[c].out = view(tokens, 2);
      if (random.chance(0.5)) chunks[c].lse = memory.data() + random.integer(0, length - 1);
    }
    bool together = false;
    for (std::size_t a = 0; a < chunks.size(); ++a) {
      const auto mine = tersekv::detail::footprints_of(chunks[a]);
      for (std::size_t b = 0; b < chunks.size(); ++b) {
        for (const auto& theirs : tersekv::detail::footprints_of(chunks[b])) {
          if (a == b) continue;
          together |= overlap(mine[0], theirs) || overlap(mine[1], theirs);  // out, lse
        }
      }
    }
    ++(together ? overlapping : apart);
    const auto check = [&] {
      tersekv::detail::check_chunks_apart(
          tersekv::detail::ChunkList(std::span<const tersekv::Chunk<float>>(chunks)));
    };
    if (together) {
      REQUIRE(refused(check, {"chunks", "overlaps"}));
    } else {
      REQUIRE_NOTHROW(check());
    }
  }
  CHECK(std::min(apart, overlapping) > 300);
}

TEST_CASE("hostile: strides so large that addresses would wrap are refused") {
  constexpr Index kHuge = std::numeric_limits<Index>::max(), kLeast = -kHuge - 1;
  tersekv::KVCache<tersekv::KVzap> cache({.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4});
  const std::vector<float> rows(3 * 8, 0.5f), scores(6, -1);
  std::vector<float> out(rows.size()), attention(64);
  const auto given = nhd_view(rows.data(), 3, 2, 4);
  for (const Index stride : {kHuge, kLeast, Index{1} << 62, Index{1} << 60, -(Index{1} << 60)}) {
    CAPTURE(stride);
    for (const char* which : {"k", "v", "q", "out", "token_scores", "token_scores of heads"}) {
      tersekv::Chunk<float> chunk{.q = given,
                                  .k = given,
                                  .v = given,
                                  .out = nhd_view(out.data(), 3, 2, 4),
                                  .token_scores = {scores.data(), 2, 1}};
      const std::string name = which;
      if (name == "k") chunk.k.token_stride = stride;
      if (name == "v") chunk.v.head_stride = stride;
      if (name == "q") chunk.q.dim_stride = stride;
      if (name == "out") chunk.out.token_stride = stride;
      if (name == "token_scores") chunk.token_scores.token_stride = stride;
      if (name == "token_scores of heads") chunk.token_scores.head_stride = stride;
      CHECK(refused([&] { cache.extend(chunk); },
                    {name.substr(0, name.find(' ')), "within 2^60 bytes"}));
    }
    CHECK(cache.tokens_seen(0) == 0);
  }
  cache.append(0, given, given, {scores.data(), 2, 1});
  CHECK(refused(
      [&] {
        cache.attend<float>(0, given, nhd_view(out.data(), 3, 2, 4),
                            {.rows = {attention.data(), 3, kHuge, 3}});
      },
      {"rows", "within 2^60 bytes"}));
}

TEST_CASE("An output may be q's own view, whatever the stride of one token") {
  tersekv::KVCache<tersekv::Full> cache({.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4});
  std::vector<float> row(32, 0.5f);
  const tersekv::TokenView<const float> q{row.data(), 1, 2, 4, 32, 4, 1};
  const auto kv = nhd_view<const float>(row.data() + 8, 1, 2, 4);
  CHECK_NOTHROW(
      cache.extend<float>({.q = q, .k = kv, .v = kv, .out = nhd_view(row.data(), 1, 2, 4)}));
  CHECK(refused(
      [&] {
        cache.extend<float>({.q = q, .k = kv, .v = kv, .out = {row.data(), 1, 2, 4, 8, 2, 1}});
      },
      {"out"}));
}

TEST_CASE("what rounds beyond the largest half is the largest half as an output") {
  const float most = 65504;
  const auto out_of = [](auto cache, const std::vector<float>& keys, float value) {
    const auto count = static_cast<Index>(keys.size());
    std::vector<Half> k, v(keys.size(), from_float<Half>(value));
    for (const float x : keys) k.push_back(from_float<Half>(x));
    cache.append(0, nhd_view(k.data(), count, 1, 1), nhd_view(v.data(), count, 1, 1));
    Half q = from_float<Half>(1), out;
    cache.template attend<Half>(0, nhd_view<const Half>(&q, 1, 1, 1), nhd_view(&out, 1, 1, 1));
    return tersekv::to_float(out);
  };
  const tersekv::CacheConfig config{
      .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1, .scale = 1.0f};
  using tersekv::BFloat16, tersekv::Full, tersekv::Int8;
  for (const float sign : {1.0f, -1.0f}) {
    CHECK(out_of(tersekv::KVCache<Full, BFloat16, BFloat16>(config), {1}, sign * most) ==
          sign * most);                 // 65536 as a BFloat16
    std::vector<float> keys(64, 0.0f);  // small shares, each rounded up
    keys[0] = 11.65f;
    CHECK(out_of(tersekv::KVCache<Full, float, Int8>(config), keys, sign * most) == sign * most);
    CHECK(out_of(tersekv::KVCache<Full>(config), keys, sign * 1000) == sign * 1000);
  }
}
