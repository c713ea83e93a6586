// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <cstdint>
#include <vector>

#include "bare_head.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/stored.hpp"
#include "tersekv/tersekv.hpp"

// A product of a key is the same bits whoever else is asked about: ties among equal keys are
// decided by position, not by rounding.

using namespace tersekv;
using support::BareHead;
using support::Random;

namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Room for the products of `n` slots in whole pages.
std::vector<float> room(Index n, Index page_size) {
  return std::vector<float>(static_cast<std::size_t>((n + page_size) / page_size * page_size));
}

TEMPLATE_TEST_CASE("one key's product is the same bits as among all", "", float, Half, BFloat16,
                   Int8) {
  Random random(6);
  INFO(random);
  for (const Index page_size : {16, 64, 256}) {
    for (const Index dim : {20, 45, 64, 97, 300}) {
      const Index n = random.integer(1, 3 * page_size);
      BareHead<Full, TestType> bare(Full{}, {.head_dim = dim, .scale = 1.0f}, n, n, page_size);
      for (Index i = 0; i < n; ++i) {
        bare.push(random.normals(dim).data(), random.normals(dim).data());
      }
      auto vector = random.normals(dim);  // another key
      support::round_as_stored<TestType>(vector, dim);
      auto all = room(n, page_size), one = all;
      const SerialTeam team;
      team.dot(bare.head(), vector.data(), n, all.data());
      for (Index i = 0; i < n; ++i) {
        double exact = 0;
        for (Index j = 0; j < dim; ++j) {
          exact += static_cast<double>(vector[static_cast<std::size_t>(j)]) *
                   static_cast<double>(bare.head().key(i, j));
        }
        const float product = all[static_cast<std::size_t>(i)];
        // Digits hold all of such a key, unless it is worked through in parts.
        const bool whole = dim <= 256;
        REQUIRE(support::close(product, exact, whole ? 1e-6 : 1e-4, whole ? 2e-5 : 1e-3));
        few_key_products(bare.head(), i & -tersekv::simd::kMostLanes, vector.data(), 1.0f,
                         one.data());
        REQUIRE(bits(one[static_cast<std::size_t>(i)]) == bits(product));
      }
    }
  }
}

TEMPLATE_TEST_CASE("products with several vectors are the same bits as with one at a time", "",
                   float, Half, BFloat16, Int8) {
  Random random(8);
  INFO(random);
  for (const Index page_size : {16, 64}) {
    for (const Index dim : {20, 64, 300}) {
      const Index n = random.integer(1, 3 * page_size), stride = 4 * page_size;
      BareHead<Full, TestType> bare(Full{}, {.head_dim = dim, .scale = 1.0f}, n, n, page_size);
      for (Index i = 0; i < n; ++i) {
        bare.push(random.normals(dim).data(), random.normals(dim).data());
      }
      auto vectors = random.normals(Scratch::kRows * dim);
      support::round_as_stored<TestType>(vectors, dim);
      std::vector<float> all(static_cast<std::size_t>(Scratch::kRows * stride));
      SerialTeam().dot<Scratch::kRows>(bare.head(), vectors.data(), n, all.data(), Scratch::kRows,
                                       stride);
      for (Index r = 0; r < Scratch::kRows; ++r) {
        auto one = room(n, page_size);
        SerialTeam().dot(bare.head(), vectors.data() + r * dim, n, one.data());
        for (Index i = 0; i < n; ++i) {
          REQUIRE(bits(all[static_cast<std::size_t>(r * stride + i)]) ==
                  bits(one[static_cast<std::size_t>(i)]));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("equal keys have equal products, wherever they lie", "", float, Half, BFloat16,
                   Int8) {
  Random random(7);
  INFO(random);
  for (const Index n : {17, 24, 40, 77}) {
    for (const Index page_size : {16, 64}) {
      const Index dim = 64;
      BareHead<Full, TestType> bare(Full{}, {.head_dim = dim, .scale = 1.0f}, n, n, page_size);
      const auto key = random.normals(dim), vector = random.normals(dim);
      for (Index i = 0; i < n; ++i) bare.push(key.data(), key.data());
      auto all = room(n, page_size);
      SerialTeam().dot(bare.head(), vector.data(), n, all.data());
      for (Index i = 0; i < n; ++i) REQUIRE(bits(all[static_cast<std::size_t>(i)]) == bits(all[0]));
    }
  }
}

}  // namespace
