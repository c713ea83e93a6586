// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tersekv/kv_cache.hpp>
#include <tersekv/policies/h2o.hpp>
#include <type_traits>
#include <vector>

#include "counting_resource.hpp"
#include "refusal.hpp"
#include "support/random.hpp"

// Whatever layout the engine's buffers have, they are read and written in place.

namespace {

using namespace tersekv;

constexpr Index kTokens = 23, kQHeads = 6, kKvHeads = 2, kDim = 10;
constexpr Index kQ = kQHeads * kDim, kK = kKvHeads * kDim;

/// Buffers for one chunk, filled with a NaN that no view names.
template <class T>
struct Buffers {
  static T nan() {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
    return std::bit_cast<T>(static_cast<Bits>(-1));
  }
  T* make(Index elements) {
    blocks.emplace_back(static_cast<std::size_t>(elements), nan());
    return blocks.back().data();
  }
  std::vector<std::vector<T>> blocks;
};

template <class T>
TokenView<T> strided(T* data, Index heads, Index token, Index head, Index dim) {
  return {data, kTokens, heads, kDim, token, head, dim};
}

template <class T>
struct Layout {
  const char* name;
  /// Mutable views of q, k, v and out.
  std::function<std::vector<TokenView<T>>(Buffers<T>&)> views;
};

template <class T>
std::vector<Layout<T>> layouts() {
  using Four = std::vector<TokenView<T>>;
  using B = Buffers<T>;
  const auto each = [](auto view) {  // the same form for all four, in buffers of their own
    return [view](B& b) {
      return Four{view(b, kQHeads), view(b, kKvHeads), view(b, kKvHeads), view(b, kQHeads)};
    };
  };
  return {
      {"NHD",
       each([](B& b, Index h) { return nhd_view(b.make(kTokens * h * kDim), kTokens, h, kDim); })},
      {"HND",
       each([](B& b, Index h) { return hnd_view(b.make(kTokens * h * kDim), kTokens, h, kDim); })},
      {"K and V in one row",
       [](B& b) {
         T* kv = b.make(kTokens * 2 * kK);
         return Four{nhd_view(b.make(kTokens * kQ), kTokens, kQHeads, kDim),
                     strided(kv, kKvHeads, 2 * kK, kDim, 1),
                     strided(kv + kK, kKvHeads, 2 * kK, kDim, 1),
                     nhd_view(b.make(kTokens * kQ), kTokens, kQHeads, kDim)};
       }},
      {"K and V in one row, head by head",
       [](B& b) {
         T* kv = b.make(kTokens * 2 * kK);
         return Four{nhd_view(b.make(kTokens * kQ), kTokens, kQHeads, kDim),
                     strided(kv, kKvHeads, 2 * kK, 2 * kDim, 1),
                     strided(kv + kDim, kKvHeads, 2 * kK, 2 * kDim, 1),
                     nhd_view(b.make(kTokens * kQ), kTokens, kQHeads, kDim)};
       }},
      {"Q, K and V in one row",
       [](B& b) {
         const Index row = kQ + 2 * kK;
         T* qkv = b.make(kTokens * row);
         return Four{strided(qkv, kQHeads, row, kDim, 1), strided(qkv + kQ, kKvHeads, row, kDim, 1),
                     strided(qkv + kQ + kK, kKvHeads, row, kDim, 1),
                     nhd_view(b.make(kTokens * kQ), kTokens, kQHeads, kDim)};
       }},
      {"all reversed", each([](B& b, Index h) {
         const Index n = kTokens * h * kDim;
         return strided(b.make(n) + n - 1, h, -h * kDim, -kDim, -1);
       })},
      {"every other element", each([](B& b, Index h) {
         return strided(b.make(2 * kTokens * h * kDim), h, 2 * h * kDim, 2 * kDim, 2);
       })},
      {"tokens innermost", each([](B& b, Index h) {
         return strided(b.make(kTokens * h * kDim), h, 1, kDim * kTokens, kTokens);
       })},
      {"rows with padding", each([](B& b, Index h) {
         return strided(b.make(kTokens * (h * (kDim + 3) + 5)), h, h * (kDim + 3) + 5, kDim + 3, 1);
       })},
  };
}

template <class T>
void fill(const TokenView<T>& view, std::uint64_t seed) {
  support::Random random(seed);
  for (Index t = 0; t < view.tokens; ++t) {
    for (Index h = 0; h < view.heads; ++h) {
      for (Index d = 0; d < kDim; ++d) view(t, h, d) = from_float<T>(random.normal());
    }
  }
}

template <class T>
std::vector<T> elements(const TokenView<T>& view) {
  std::vector<T> all;
  for (Index t = 0; t < view.tokens; ++t) {
    for (Index h = 0; h < view.heads; ++h) {
      for (Index d = 0; d < kDim; ++d) all.push_back(view(t, h, d));
    }
  }
  return all;
}

template <class T>
struct Result {
  std::vector<T> out;
  std::vector<float> keys;
  Index allocations = 0;
};

/// A prompt and a second chunk through the views; both compress.
template <class T>
Result<T> run(const std::vector<TokenView<T>>& views) {
  CountingResource resource;
  KVCache<H2O> cache({.num_q_heads = kQHeads,
                      .num_kv_heads = kKvHeads,
                      .head_dim = kDim,
                      .budget = 12,
                      .page_size = 16},
                     make_h2o(), {}, &resource);
  for (std::size_t i = 0; i < 3; ++i) fill(views[i], 80 + i);
  for (const auto& [first, count] : {std::pair<Index, Index>{0, 15}, {15, 8}}) {
    cache.extend<T>(views[0].rows(first, count), views[1].rows(first, count),
                    views[2].rows(first, count), views[3].rows(first, count));
  }
  Result<T> result;
  result.allocations = resource.allocations();
  result.out = elements(views[3]);
  for (const Entry& entry : cache.entries(0, 1)) {
    result.keys.insert(result.keys.end(), entry.key.begin(), entry.key.end());
  }
  return result;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
Index untouched(const Buffers<T>& buffers) {
  Index count = 0;
  const T nan = Buffers<T>::nan();
  for (const auto& block : buffers.blocks) {
    for (const T& x : block) count += std::memcmp(&x, &nan, sizeof nan) == 0;
  }
  return count;
}

TEMPLATE_TEST_CASE("layouts: every layout gives the bits of the contiguous one, without a copy", "",
                   float, Half, BFloat16) {
  using T = TestType;
  Buffers<T> plain;
  const auto all = layouts<T>();
  const Result<T> want = run(all.front().views(plain));
  CHECK(want.keys.size() == 12 * kDim);
  for (const Layout<T>& layout : all) {
    CAPTURE(layout.name);
    Buffers<T> buffers;
    const auto views = layout.views(buffers);
    Index held = 0;
    for (const auto& block : buffers.blocks) held += static_cast<Index>(block.size());
    const Result<T> got = run(views);
    CHECK(same(got.out, want.out));
    CHECK(same(got.keys, want.keys));
    CHECK(got.allocations == want.allocations);
    CHECK(untouched(buffers) == held - 2 * kTokens * (kQ + kK));
  }
}

TEMPLATE_TEST_CASE("layouts: out may be the view of q", "", float, Half) {
  using T = TestType;
  Buffers<T> plain;
  const auto all = layouts<T>();
  const Result<T> want = run(all.front().views(plain));
  for (const Layout<T>& layout : all) {
    CAPTURE(layout.name);
    Buffers<T> buffers;
    auto views = layout.views(buffers);
    views[3] = views[0];
    Result<T> got;
    REQUIRE_NOTHROW(got = run(views));
    CHECK(same(got.out, want.out));
    CHECK(same(got.keys, want.keys));
  }
}

TEST_CASE("layouts: append, attend and observe read the layouts in place, too") {
  const auto all = layouts<float>();
  std::vector<float> want;
  for (const Layout<float>& layout : all) {
    CAPTURE(layout.name);
    Buffers<float> buffers;
    const auto views = layout.views(buffers);
    for (std::size_t i = 0; i < 3; ++i) fill(views[i], 90 + i);
    KVCache<H2O> cache(
        {.num_q_heads = kQHeads, .num_kv_heads = kKvHeads, .head_dim = kDim, .budget = 12},
        make_h2o());
    cache.append(0, views[1], views[2]);
    cache.attend(0, views[0], views[3]);
    cache.observe(0, views[0]);
    cache.compress(0);
    std::vector<float> got = elements(views[3]);
    for (const Entry& entry : cache.entries(0, 0)) got.push_back(entry.score);
    if (want.empty()) want = got;
    CHECK(same(got, want));
  }
}

TEST_CASE("layouts: outputs that overlap something are refused") {
  Buffers<float> buffers;
  std::vector<TokenView<float>> views = layouts<float>().front().views(buffers);
  // With room behind them, so that an overlap that is not refused does no harm.
  views[0] = nhd_view(buffers.make(2 * kTokens * kQ), kTokens, kQHeads, kDim);
  views[1] = nhd_view(buffers.make(kTokens * kQ), kTokens, kKvHeads, kDim);
  views[2] = nhd_view(buffers.make(kTokens * kQ), kTokens, kKvHeads, kDim);
  const auto refuses = [&](TokenView<float> out, const char* what) {
    std::vector<TokenView<float>> bad = views;
    bad[3] = out;
    KVCache<H2O> cache(
        {.num_q_heads = kQHeads, .num_kv_heads = kKvHeads, .head_dim = kDim, .budget = 12},
        make_h2o());
    for (std::size_t i = 0; i < 3; ++i) fill(views[i], 80 + i);
    const auto extended = support::refused(
        [&] { cache.extend<float>(bad[0], bad[1], bad[2], bad[3]); }, {"out", what});
    return extended && cache.tokens_seen(0) == 0;
  };
  float* room = buffers.make(4 * kTokens * kQ);
  const auto shifted = [](TokenView<float> view, Index by) {
    view.data += by;
    return view;
  };
  CHECK(refuses(shifted(views[0], 1), "q"));
  CHECK(refuses(shifted(views[0], kQ), "q"));
  CHECK(
      refuses(strided(views[0].data, kQHeads, kQ, 1, kQHeads), "q"));  // same place, other strides
  CHECK(refuses(nhd_view(views[1].data, kTokens, kQHeads, kDim), "k"));
  CHECK(refuses(nhd_view(views[2].data, kTokens, kQHeads, kDim), "v"));
  CHECK(refuses(strided(room, kQHeads, 0, kDim, 1), "strides"));
  CHECK(refuses(strided(room, kQHeads, kQ, 0, 1), "strides"));
  CHECK(refuses(strided(room, kQHeads, kQ, kDim, 0), "strides"));
  CHECK(refuses(strided(room, kQHeads, kQ - 1, kDim, 1), "place of its own"));
  CHECK(refuses(strided(room + kTokens * kQ, kQHeads, -kQ + 1, kDim, 1), "place of its own"));
  CHECK_FALSE(refuses(strided(room, kQHeads, kQ, kDim, 1), ""));
}

TEST_CASE("layouts: no chunk of a batch may write where another reads or writes") {
  Buffers<float> buffers;
  const auto first = layouts<float>().front().views(buffers);
  const auto second = layouts<float>().front().views(buffers);
  for (std::size_t i = 0; i < 3; ++i) {
    fill(first[i], 80 + i);
    fill(second[i], 90 + i);
  }
  KVCache<H2O> cache({.num_sequences = 2,
                      .num_q_heads = kQHeads,
                      .num_kv_heads = kKvHeads,
                      .head_dim = kDim,
                      .budget = 12},
                     make_h2o());
  const auto refuses = [&](TokenView<float> one, TokenView<float> other) {
    const Chunk<float> chunks[] = {
        {.sequence = 0, .q = first[0], .k = first[1], .v = first[2], .out = one},
        {.sequence = 1, .q = second[0], .k = second[1], .v = second[2], .out = other}};
    return support::refused([&] { cache.extend<float>(chunks); }, {"out"});
  };
  CHECK(refuses(first[3], first[3]));
  CHECK(refuses(second[0], second[3]));
  float* room = buffers.make(2 * kTokens * kQ);
  CHECK(
      refuses(nhd_view(room, kTokens, kQHeads, kDim), nhd_view(room + kQ, kTokens, kQHeads, kDim)));
  CHECK_FALSE(refuses(first[3], second[3]));
}
}  // namespace
