// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <random>
#include <tersekv/tersekv.hpp>
#include <vector>

int main() {  // one attention layer: 6 query heads on 2 KV heads of 64 elements
  tersekv::CacheConfig config{.num_q_heads = 6, .num_kv_heads = 2, .head_dim = 64};
  tersekv::KVCache<tersekv::Full> full(config);
  config.budget = 128;  // entries per KV head
  tersekv::KVCache<tersekv::ZSMerge> cache(config);

  std::mt19937 random(1);
  std::vector<float> q(6 * 64), k(2 * 64), v(2 * 64), out(6 * 64);
  const auto row = [](auto& x) { return tersekv::nhd_view(x.data(), 1, x.size() / 64, 64); };
  for (int token = 0; token < 1000; ++token) {  // a decode step per token
    for (auto* x : {&q, &k, &v})
      for (float& element : *x) element = static_cast<float>(random()) * 0x1p-31f - 1;
    full.extend(row(q), row(k), row(v), row(out));
    cache.extend(row(q), row(k), row(v), row(out));
  }
  std::cout << "tokens seen   " << cache.tokens_seen(0) << "\nentries kept  " << cache.length(0, 0)
            << " per head (" << 100 * cache.keep_ratio() << " %)\nbytes         " << cache.bytes()
            << " (full cache: " << full.bytes() << ")\n";
}
