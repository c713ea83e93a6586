// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "given_weights.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

// Attention of several tokens in one pass, as prompts are worked through: a row must not see what
// came after it, wherever the vectors end.

using support::GivenWeights;
using support::Random;
using tersekv::Half;
using tersekv::Index;
using tersekv::Int8;

namespace {

template <class Codec>
void attends_to_several_tokens_at_once(std::uint64_t seed, double tolerance = 1e-5) {
  Random random(seed);
  INFO(random);
  for (int i = 0; i < 60; ++i) {
    const Index dim = random.pick(std::vector<Index>{1, 3, 8, 20, 64, 80, 130}),
                group = random.integer(1, 5);
    const Index length = random.integer(1, 150), rows = random.integer(1, length);
    const auto q = random.normals(rows * group * dim), k = random.normals(length * dim);
    const auto v = random.normals(length * dim);
    tersekv::KVCache<GivenWeights, Codec> cache(
        {.num_q_heads = group, .num_kv_heads = 1, .head_dim = dim, .page_size = 16});
    const std::vector<float> ones(static_cast<std::size_t>(length), 1.0f);
    cache.append(0, tersekv::nhd_view(k.data(), length, 1, dim),
                 tersekv::nhd_view(v.data(), length, 1, dim), {ones.data(), 1});
    std::vector<float> out(q.size());
    cache.attend(0, tersekv::nhd_view(q.data(), rows, group, dim),
                 tersekv::nhd_view(out.data(), rows, group, dim));
    const auto entries = support::reference_entries(cache, 0);
    for (Index row = 0; row < rows * group; ++row) {
      const Index seen = length - (rows - 1 - row / group);
      CAPTURE(dim, group, length, rows, row);
      const reference::Vector query(q.begin() + row * dim, q.begin() + (row + 1) * dim);
      const auto want = reference::attend(query, entries, static_cast<std::size_t>(seen), 0,
                                          1 / std::sqrt(static_cast<double>(dim)));
      REQUIRE(support::close_all(
          std::vector<float>(out.begin() + row * dim, out.begin() + (row + 1) * dim), want.output,
          tolerance, tolerance));
    }
  }
}

}  // namespace

TEST_CASE("several tokens attend at once, each to what came before it") {
  attends_to_several_tokens_at_once<float>(20);
  attends_to_several_tokens_at_once<Half>(21);
  attends_to_several_tokens_at_once<Int8>(22, 1e-4);
}
