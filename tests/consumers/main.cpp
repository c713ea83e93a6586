// SPDX-License-Identifier: Apache-2.0
// The smallest program that instantiates a cache; every consumer builds it.
#include <cstdio>
#include <tersekv/tersekv.hpp>
#include <vector>

int main() {
  constexpr tersekv::Index heads = 2, head_dim = 8, tokens = 20;
  tersekv::KVCache<tersekv::StreamingLLM> cache(
      {.num_q_heads = heads, .num_kv_heads = heads, .head_dim = head_dim, .budget = 10});
  std::vector<float> x(tokens * heads * head_dim, 0.5f), out(x.size());
  const auto in = tersekv::nhd_view<const float>(x.data(), tokens, heads, head_dim);
  cache.extend(in, in, in, tersekv::nhd_view(out.data(), tokens, heads, head_dim));
  if (cache.length(0, 0) != 10 || cache.tokens_seen(0) != tokens) {
    std::fputs("the cache is not within its budget\n", stderr);
    return 1;
  }
  return 0;
}
