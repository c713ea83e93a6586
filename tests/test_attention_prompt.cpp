// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "given_weights.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"

// Attention of several tokens in one pass, as prompts are worked through: a row must not see what
// came after it, wherever the vectors end.

using support::GivenWeights;
using support::Random;
using tersekv::BFloat16;
using tersekv::Half;
using tersekv::Index;
using tersekv::Int8;

namespace {

/// Shapes of such calls.
struct Shapes {
  std::vector<Index> dims = {1, 3, 8, 20, 64, 80, 130};
  Index most_entries = 150, page_size = 16;
  bool many_rows = false;
};

template <class Codec>
void attends_to_several_tokens_at_once(std::uint64_t seed, double tolerance = 1e-5,
                                       const Shapes& shapes = {}) {
  Random random(seed);
  INFO(random);
  // The reference of many rows is most of the time.
  const int cases = shapes.many_rows && support::kAddressSanitizer ? 15 : 60;
  for (int i = 0; i < cases; ++i) {
    const Index dim = random.pick(shapes.dims), group = random.integer(1, 5);
    const Index least = shapes.many_rows ? 32 / group + 1 : 1;
    const Index length = random.integer(least, shapes.most_entries),
                rows = random.integer(least, length);
    const auto q = random.normals(rows * group * dim), k = random.normals(length * dim);
    const auto v = random.normals(length * dim);
    tersekv::KVCache<GivenWeights, Codec> cache(
        {.num_q_heads = group, .num_kv_heads = 1, .head_dim = dim, .page_size = shapes.page_size});
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

TEST_CASE("so do many, in pages that tile registers may work on") {
  for (const Index page_size : {64, 128}) {
    const Shapes shapes{
        .dims = {16, 64, 80, 128}, .most_entries = 400, .page_size = page_size, .many_rows = true};
    attends_to_several_tokens_at_once<float>(23, 1e-5, shapes);
    attends_to_several_tokens_at_once<Half>(24, 5e-5, shapes);
    attends_to_several_tokens_at_once<BFloat16>(25, 5e-5, shapes);
    attends_to_several_tokens_at_once<Int8>(26, 1e-4, shapes);
  }
}
