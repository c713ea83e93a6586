// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "plain_threads.hpp"
#include "support/random.hpp"

// Pages of several sequences lie side by side in a block of large pages. Attention reads values in
// whole vectors, past the last one of a page: ThreadSanitizer sees it where that is memory that
// another thread writes.

using namespace tersekv;

TEMPLATE_TEST_CASE("a worker touches nothing of the page behind its own", "", float, BFloat16,
                   Int8) {
  constexpr Index kDim = 20, kPage = 64;
  PagePool pool(std::pmr::get_default_resource(), PageMemory::large);
  KVCache<Full, TestType, TestType, support::Threads> cache({.num_sequences = 2,
                                                             .num_q_heads = 1,
                                                             .num_kv_heads = 1,
                                                             .head_dim = kDim,
                                                             .page_size = kPage},
                                                            Full{}, pool, support::Threads(2));
  KVCache<Full, TestType> alone({.num_sequences = 2,
                                 .num_q_heads = 1,
                                 .num_kv_heads = 1,
                                 .head_dim = kDim,
                                 .page_size = kPage});
  support::Random random(3);
  const std::vector<float> rows = random.normals(kPage * kDim);
  const auto tokens = [&](Index count) {
    return nhd_view<const float>(rows.data(), count, 1, kDim);
  };
  std::vector<float> out(2 * kDim), expected(2 * kDim);
  const auto extend = [&](auto& one, std::vector<float>& to) {
    std::array<Chunk<float>, 2> chunks;
    for (Index s = 0; s < 2; ++s) {
      chunks[static_cast<std::size_t>(s)] = {
          .sequence = s,
          .q = tokens(1),
          .k = tokens(1),
          .v = tokens(1),
          .out = nhd_view(to.data() + s * kDim, Index{1}, Index{1}, kDim)};
    }
    one.extend(chunks);
  };
  cache.append(0, tokens(kPage), tokens(kPage));  // a page full
  alone.append(0, tokens(kPage), tokens(kPage));
  for (int round = 0; round < 20; ++round) {  // and a page whose first entries are written
    cache.clear(1);
    alone.clear(1);
    for (int token = 0; token < 6; ++token) {
      extend(cache, out);
      extend(alone, expected);
      REQUIRE(out == expected);
    }
  }
}
