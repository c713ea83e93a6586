// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <tersekv/tersekv.hpp>
#include <vector>

#include "plain_threads.hpp"
#include "support/random.hpp"

// Heads that workers share, of values that are no whole vectors: those that read one worker's last
// values read into the first of the next one's, which may be new.

using namespace tersekv;
using support::Random;
using support::Threads;

namespace {

template <class Codec>
void check(Index dim, Index page_size) {
  CAPTURE(dim, page_size);
  Random random(46);
  INFO(random);
  constexpr Index heads = 4;
  const CacheConfig config{
      .num_q_heads = heads, .num_kv_heads = heads, .head_dim = dim, .page_size = page_size};
  const Threads threads(3);
  KVCache<Full, Codec> one(config);
  KVCache<Full, Codec, Codec, Threads> several(config, {}, threads);
  // 511 entries, 512 and 513, then 767 to 769.
  for (const Index tokens : {511, 1, 1, 254, 1, 1}) {
    CAPTURE(one.length(0, 0));
    const auto x = random.normals(tokens * heads * dim);
    std::vector<float> out(x.size()), other(x.size());
    const auto in = nhd_view<const float>(x.data(), tokens, heads, dim);
    one.extend(in, in, in, nhd_view<float>(out.data(), tokens, heads, dim));
    threads.tasks();
    several.extend(in, in, in, nhd_view<float>(other.data(), tokens, heads, dim));
    CHECK(out == other);
    // The last of four heads in parts: two, or from 768 entries on three.
    if (tokens == 1) CHECK(threads.tasks() == 3 + (one.length(0, 0) < 768 ? 2 : 3));
  }
}

TEST_CASE("shared heads: values that are no whole vectors") {
  for (const Index dim : {1, 20, 40}) {
    for (const Index page_size : {16, 4096}) {
      check<float>(dim, page_size);
      check<Half>(dim, page_size);
      check<Int8>(dim, page_size);
    }
  }
}

}  // namespace
