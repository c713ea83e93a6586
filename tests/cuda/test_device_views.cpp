// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_template_test_macros.hpp>
#include <vector>

#include "cuda/device_tokens.hpp"
#include "tersekv/tersekv.hpp"

// Where a view's elements lie changes nothing: side by side, from an odd address on, apart.

using namespace tersekv;
using on_device::Array;

namespace {

constexpr Index kHeads = 2, kGroup = 4, kDim = 32;

/// The elements of a contiguous view of `tokens` tokens, `apart` from each other after `offset`.
template <class T>
struct Spread {
  Spread(const std::vector<float>& numbers, Index tokens, Index heads, Index offset, Index apart)
      : array([&] {
          std::vector<T> all(static_cast<std::size_t>(offset + apart * std::ssize(numbers)));
          for (Index i = 0; i < std::ssize(numbers); ++i) {
            all[static_cast<std::size_t>(offset + apart * i)] =
                from_float<T>(numbers[static_cast<std::size_t>(i)]);
          }
          return all;
        }()),
        view{array.data() + offset, tokens,       heads, kDim,
             heads * kDim * apart,  kDim * apart, apart} {}
  Array<T> array;
  TokenView<const T> view;
};

template <class T>
std::vector<float> attention(Index tokens, Index offset, Index apart) {
  const CacheConfig config{
      .num_q_heads = kHeads * kGroup, .num_kv_heads = kHeads, .head_dim = kDim, .budget = 100};
  on_device::KVCache<H2O, T, T, tersekv::cuda::HeadDims<kDim>> cache(config, {}, {.max_chunk = 64});
  support::Random random(1);
  std::vector<float> outputs;
  for (const Index count : {tokens, Index{1}}) {
    const auto numbers = on_device::TokensOf<T>(random, count, kHeads, kGroup, kDim).host_rows();
    const Spread<T> q(numbers.q, count, kHeads * kGroup, offset, apart),
        k(numbers.k, count, kHeads, offset, apart), v(numbers.v, count, kHeads, offset, apart);
    const Array<T> out(count * kHeads * kGroup * kDim);
    cache.extend(q.view, k.view, v.view, nhd_view(out.data(), count, kHeads * kGroup, kDim));
    for (const T x : out.host()) outputs.push_back(to_float(x));
  }
  return outputs;
}

}  // namespace

TEMPLATE_TEST_CASE("device: views may begin and step anywhere", "[small]", Half, BFloat16, float) {
  on_device::require_device();
  const Index tokens = GENERATE(1, 21);
  const auto side_by_side = attention<TestType>(tokens, 0, 1);
  CHECK(attention<TestType>(tokens, 1, 1) == side_by_side);
  CHECK(attention<TestType>(tokens, 1, 3) == side_by_side);
}
