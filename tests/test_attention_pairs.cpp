// SPDX-License-Identifier: Apache-2.0
// Query rows that are BFloat16 against such keys: two dimensions at once, and the same bits.
#include "tersekv/attention_pairs.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "support/random.hpp"
#include "tersekv/kv_cache.hpp"
#include "tersekv/policies/full.hpp"

using support::Random;
using tersekv::BFloat16;
using tersekv::Index;
using tersekv::nhd_view;
namespace detail = tersekv::detail;

namespace {

constexpr Index kPage = 64;

std::vector<float> as_bfloat16(std::vector<float> numbers) {
  for (float& x : numbers) x = tersekv::to_float(tersekv::from_float<BFloat16>(x));
  return numbers;
}

struct Queries {
  std::vector<float> rows, pairs;
  bool paired;
  Queries(std::vector<float> numbers, Index num_rows, Index dim)
      : rows(std::move(numbers)), pairs(rows.size() / 2 + 16) {
    paired = detail::make_pairs(rows.data(), num_rows, dim, pairs.data());
  }
};

bool is_paired(std::vector<float> row) {
  const auto dim = static_cast<Index>(row.size());
  return Queries(std::move(row), 1, dim).paired;
}

}  // namespace

TEST_CASE("logits of pairs are those of one dimension after the other, to the bit") {
  Random random(5);
  for (const Index dim : {2, 20, 64, 80, 128}) {
    const std::vector<float> numbers = random.normals(dim * kPage, 2);
    std::vector<BFloat16> keys(numbers.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = tersekv::from_float<BFloat16>(numbers[i]);
    }
    for (const Index rows : {1, 2, 3, 4, 5, 16}) {
      const Queries queries(as_bfloat16(random.normals(rows * dim, 3)), rows, dim);
      REQUIRE(queries.paired);
      for (Index entries = 16; entries <= kPage; entries += 16) {
        INFO("head_dim " << dim << ", " << rows << " rows, " << entries << " entries");
        const Index vectors = entries / tersekv::simd::kLanes;
        std::vector<float> one(static_cast<std::size_t>(rows * kPage), -1.0f), two = one;
        const detail::ReadingOrder order{dim, dim};
        const auto nothing = detail::Ahead<BFloat16>::none(keys.data());
        detail::key_tile(keys.data(), nothing, order, kPage, dim, vectors, queries.rows.data(),
                         rows, 0.3f, one.data(), kPage);
        detail::pair_tile(keys.data(), nothing, order, kPage, dim, vectors, queries.rows.data(),
                          queries.pairs.data(), rows, 0.3f, two.data(), kPage);
        CHECK(one == two);
        double logit = 0;  // of the last row and entry
        for (Index j = 0; j < dim; ++j) {
          logit += 0.3 * queries.rows[static_cast<std::size_t>((rows - 1) * dim + j)] *
                   tersekv::to_float(keys[static_cast<std::size_t>(j * kPage + entries - 1)]);
        }
        const float got = two[static_cast<std::size_t>((rows - 1) * kPage + entries - 1)];
        CHECK(std::abs(got - logit) < 1e-5 * static_cast<double>(dim));
      }
    }
  }
}

TEST_CASE("rows are taken as pairs only where that is exact") {
  CHECK(is_paired({0.0f, -0.0f, 1.5f, -0x1p-63f, 0x1p64f, 3.0f}));
  CHECK_FALSE(is_paired({1.0f, 2.0f, 3.0f}));
  CHECK_FALSE(is_paired({1.0f, 1.001f}));
  CHECK_FALSE(is_paired({0x1p-64f, 1.0f}));
  CHECK_FALSE(is_paired({1.0f, 0x1p-130f}));
  CHECK_FALSE(is_paired({-0x1p65f, 1.0f}));
  std::vector<float> row(100, 1.0f);  // whole vectors and a tail
  CHECK(is_paired(row));
  for (const std::size_t i : {0, 15, 63, 97, 99}) {
    row[i] = 1.001f;
    CHECK_FALSE(is_paired(row));
    row[i] = 1.0f;
  }
}

TEST_CASE("a BFloat16 query's attention is the same bits beside one that is none") {
  for (const Index dim : {20, 64, 80, 128}) {
    for (const Index length : {40, 64, 300, 2100}) {
      INFO("head_dim " << dim << ", length " << length);
      tersekv::KVCache<tersekv::Full, BFloat16> cache(
          {.num_q_heads = 2, .num_kv_heads = 1, .head_dim = dim});
      Random random(12);
      const std::vector<float> k = random.normals(length * dim), v = random.normals(length * dim);
      cache.append(0, nhd_view(k.data(), length, 1, dim), nhd_view(v.data(), length, 1, dim));
      std::vector<float> q = as_bfloat16(random.normals(2 * dim, 3)), out(q), other(q);
      cache.attend(0, nhd_view<const float>(q.data(), 1, 2, dim), nhd_view(out.data(), 1, 2, dim));
      q.back() = 0.1f;  // of the second query head
      cache.attend(0, nhd_view<const float>(q.data(), 1, 2, dim),
                   nhd_view(other.data(), 1, 2, dim));
      const auto half = static_cast<std::ptrdiff_t>(dim);
      CHECK(std::vector<float>(out.begin(), out.begin() + half) ==
            std::vector<float>(other.begin(), other.begin() + half));
      CHECK(out != other);
    }
  }
}
