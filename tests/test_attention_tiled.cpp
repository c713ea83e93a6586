// SPDX-License-Identifier: Apache-2.0
// Attention where tile registers take part, if there are some: tokens of many query heads, chunks.
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "attention_errors.hpp"
#include "tersekv/policies/full.hpp"

using namespace support;

namespace {

constexpr Index kGroup = 7, kDim = 64, kEntries = 100;

/// Outputs of the last of `tokens` tokens of a call.
template <class T>
std::vector<float> of_last(Index tokens) {
  tersekv::KVCache<tersekv::Full, T> cache(
      {.num_q_heads = kGroup, .num_kv_heads = 1, .head_dim = kDim});
  Random random(4);
  const auto k = random.normals(kEntries * kDim), v = random.normals(kEntries * kDim),
             q = random.normals(kEntries * kGroup * kDim);
  cache.append(0, tersekv::nhd_view(k.data(), kEntries, 1, kDim),
               tersekv::nhd_view(v.data(), kEntries, 1, kDim));
  std::vector<float> out(static_cast<std::size_t>(tokens * kGroup * kDim));
  cache.template attend<float>(
      0, tersekv::nhd_view(q.data(), kEntries, kGroup, kDim).rows(kEntries - tokens, tokens),
      tersekv::nhd_view(out.data(), tokens, kGroup, kDim));
  return {out.end() - kGroup * kDim, out.end()};
}

}  // namespace

TEST_CASE("attention of tokens of many query heads is right over 16 and over 8 bits") {
  const auto many_heads = [](Setting& s, Random& random) {
    s.dim = random.pick(std::vector<Index>{32, 64, 96, 128, 192});
    s.group = random.integer(7, 20);
    s.page = random.pick(std::vector<Index>{32, 64, 128, 512});
    s.length = random.integer(1, 600);
  };
  // Shares that are rounded to 2^-16 of themselves.
  constexpr Bands rounded{{3e-9, 1e-7},   {1e-7, 6e-6},  {3e-9, 1.5e-7},
                          {3e-8, 1.2e-6}, {5e-12, 2e-9}, {5e-10, 1e-7}};
  check(over_many_settings<BFloat16>(20, 50, many_heads),
        tersekv::simd::Tiles::granted() ? rounded : kBands);
  check(over_many_settings<Int8>(21, 50, many_heads), kByteBands);
}

TEMPLATE_TEST_CASE("a token's attention is the same bits in every chunk, and in every small call",
                   "", float, Half, BFloat16, Int8) {
  const auto alone = of_last<TestType>(1);
  CHECK(of_last<TestType>(2) == alone);  // 14 query rows
  const auto in_chunk = of_last<TestType>(3);
  for (const Index tokens : {9, 10, 19, 28, 64}) {  // in blocks of nine
    CAPTURE(tokens);
    CHECK(of_last<TestType>(tokens) == in_chunk);
  }
  CHECK(close_all(in_chunk, alone, 1e-5, 1e-5));
}
