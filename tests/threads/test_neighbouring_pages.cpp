// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
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
  constexpr Index kDim = 20, kPage = 64, kRounds = 40;
  PagePool pool(std::pmr::get_default_resource(), PageMemory::large);
  KVCache<Full, TestType, TestType, support::Threads> cache({.num_sequences = 2,
                                                             .num_q_heads = 1,
                                                             .num_kv_heads = 1,
                                                             .head_dim = kDim,
                                                             .page_size = kPage},
                                                            Full{}, pool, support::Threads(2));
  support::Random random(3);
  const std::vector<float> rows = random.normals(kPage * kDim);
  const auto tokens = [&](Index count) {
    return nhd_view<const float>(rows.data(), count, 1, kDim);
  };
  cache.append(0, tokens(kPage), tokens(kPage));  // a page full
  cache.append(1, tokens(1), tokens(1));          // and a page that fills up
  REQUIRE(cache.head(0, 0).value_page(0) != nullptr);
  std::array<std::vector<float>, 2> out;
  std::array<Chunk<float>, 2> chunks;
  for (Index s = 0; s < 2; ++s) {
    auto& to = out[static_cast<std::size_t>(s)];
    to.resize(static_cast<std::size_t>(kDim));
    chunks[static_cast<std::size_t>(s)] = {.sequence = s,
                                           .q = tokens(1),
                                           .k = tokens(1),
                                           .v = tokens(1),
                                           .out = nhd_view(to.data(), Index{1}, Index{1}, kDim)};
  }
  for (Index round = 0; round < kRounds; ++round) cache.extend(chunks);
  CHECK(cache.length(1, 0) == 1 + kRounds);
  // Both are what they are alone.
  for (const auto& each : out) {
    CHECK(std::all_of(each.begin(), each.end(), [](float x) { return x > -10 && x < 10; }));
  }
}
