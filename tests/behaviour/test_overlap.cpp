// SPDX-License-Identifier: Apache-2.0

// Which views lie among each other and yet share nothing.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "refusal.hpp"
#include "support/random.hpp"

using support::refused;
using tersekv::Index;

TEST_CASE("no two views that share an element are taken for apart, and few the other way") {
  support::Random random(13);
  std::vector<float> memory(3000);
  int mistaken = 0, shared = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const auto view = [&] {
      const Index t = random.integer(1, 4), h = random.integer(1, 4), d = random.integer(1, 4);
      const Index at = 1000 + random.integer(0, 60);
      tersekv::TokenView<float> v{memory.data() + at, t, h, d, h * d * random.integer(1, 3), d, 1};
      const Index form = random.integer(0, 3);
      if (form == 1) v.token_stride = d, v.head_stride = t * d * random.integer(1, 3);
      if (form == 2) v.token_stride = 3 * h * d, v.head_stride = 3 * d;
      if (form == 3) {
        v.token_stride = random.integer(-30, 30), v.head_stride = random.integer(-12, 12);
        v.dim_stride = random.integer(1, 3);
      }
      return v;
    };
    const auto a = view();
    auto b = view();
    if (random.chance(0.5)) b.token_stride = a.token_stride, b.head_stride = a.head_stride;
    std::vector<bool> taken(memory.size());
    bool share = false;
    const auto for_each = [](const auto& v, auto&& f) {
      for (Index t = 0; t < v.tokens; ++t)
        for (Index h = 0; h < v.heads; ++h)
          for (Index d = 0; d < v.head_dim; ++d) f(&v(t, h, d));
    };
    const auto place = [&](const float* x) { return static_cast<std::size_t>(x - memory.data()); };
    for_each(a, [&](const float* x) { taken[place(x)] = true; });
    for_each(b, [&](const float* x) { share = share || taken[place(x)]; });
    const bool said = tersekv::detail::overlap(a, b);
    if (share) REQUIRE(said);
    shared += share ? 1 : 0;
    mistaken += said && !share ? 1 : 0;
  }
  CHECK(shared > kRounds / 4);
  CHECK(mistaken < (kRounds - shared) / 10);
}

TEST_CASE("sequences of a batch whose heads come first, and rows of q, k, v by heads, are apart") {
  using tersekv::hnd_view;
  constexpr Index kSequences = 3, kHeads = 2, kDim = 4;
  tersekv::KVCache<tersekv::Full> cache({.num_sequences = kSequences,
                                         .num_q_heads = kHeads,
                                         .num_kv_heads = kHeads,
                                         .head_dim = kDim});
  std::vector<float> rows(3 * 5 * kHeads * kDim, 0.5f), out(rows.size());
  const auto all = hnd_view<const float>(rows.data(), kSequences, kHeads, kDim);
  const auto all_out = hnd_view(out.data(), kSequences, kHeads, kDim);
  std::vector<tersekv::Chunk<float>> chunks;
  for (Index s = 0; s < kSequences; ++s) {
    chunks.push_back({.sequence = s,
                      .q = all.rows(s, 1),
                      .k = all.rows(s, 1),
                      .v = all.rows(s, 1),
                      .out = all_out.rows(s, 1)});
  }
  CHECK_NOTHROW(cache.extend(chunks));
  chunks[2].out = all_out.rows(1, 1);
  CHECK(refused([&] { cache.extend(chunks); }, {"chunks", "overlaps"}));

  const auto part = [&](Index which) {  // of [token][head][q|k|v]
    return tersekv::TokenView<float>{rows.data() + which * kDim, 5,       kHeads, kDim,
                                     3 * kHeads * kDim,          3 * kDim};
  };
  CHECK_NOTHROW(cache.extend<float>({.q = part(0), .k = part(1), .v = part(2), .out = part(0)}));
  CHECK(refused(
      [&] { cache.extend<float>({.q = part(0), .k = part(1), .v = part(2), .out = part(2)}); },
      {"out", "overlaps"}));
}
