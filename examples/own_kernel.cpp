// SPDX-License-Identifier: Apache-2.0
// An engine with an attention kernel of its own: the cache stores, the kernel attends, the policy
// learns from the kernel's attention rows. The kernel here is the plainest there is; what matters
// is what it reads, and what it hands back.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <tersekv/tersekv.hpp>
#include <vector>

using tersekv::Index;
using Cache = tersekv::KVCache<tersekv::ZSMerge, tersekv::Half>;

// One query token against one KV head. `out` is [group, head_dim], `attention` [length]: the
// softmax that the output used, compensation included, reduced over the group as CacheConfig says.
void attend(const Cache& cache, Index kv_head, const float* query, float* out, float* attention) {
  const auto head = cache.head(0, kv_head);
  const Index n = head.length(), dim = head.head_dim(), page = head.page_size();
  const float scale = head.shape().scale, alpha = cache.policy().alpha();
  std::fill_n(attention, n, 0.0f);
  std::vector<float> row(static_cast<std::size_t>(n));
  for (Index g = 0; g < head.shape().group_size; ++g, query += dim, out += dim) {
    float highest = 0, sum = 0;
    for (Index i = 0; i < n; ++i) {
      const tersekv::Half* keys = head.key_page(i / page) + i % page;  // [head_dim, page_size]
      float product = 0;
      for (Index j = 0; j < dim; ++j) product += query[j] * to_float(keys[j * page]);
      row[i] = scale * product + alpha * std::log(head.weight(i));
      highest = i == 0 ? row[i] : std::max(highest, row[i]);
    }
    for (float& x : row) sum += x = std::exp(x - highest);
    std::fill_n(out, dim, 0.0f);
    for (Index i = 0; i < n; ++i) {
      const tersekv::Half* value =
          head.value_page(i / page) + i % page * dim;  // [page_size, head_dim]
      for (Index j = 0; j < dim; ++j) out[j] += row[i] / sum * to_float(value[j]);
      attention[i] += row[i] / sum;
    }
  }
}

int main() {
  constexpr Index kv_heads = 2, group = 3, dim = 16;
  const tersekv::CacheConfig config{
      .num_q_heads = kv_heads * group, .num_kv_heads = kv_heads, .head_dim = dim, .budget = 32};
  Cache cache(config), reference(config);  // the second one attends by itself

  std::mt19937 random(1);
  std::vector<float> q(kv_heads * group * dim), k(kv_heads * dim), v(k.size()), out(q.size()),
      expected(q.size());
  const auto rows = [](std::vector<float>& x) {
    return tersekv::nhd_view(x.data(), 1, static_cast<Index>(x.size()) / dim, dim);
  };
  float difference = 0;
  for (int token = 0; token < 300; ++token) {
    for (auto* x : {&q, &k, &v})
      for (float& element : *x) element = static_cast<float>(random()) * 0x1p-31f - 1;

    cache.append(0, rows(k), rows(v));
    // Every head's row has room for the longest; a head's length is what the policy made of it.
    const Index longest = std::max(cache.length(0, 0), cache.length(0, 1));
    std::vector<float> attention(static_cast<std::size_t>(kv_heads * longest));
    for (Index h = 0; h < kv_heads; ++h) {
      attend(cache, h, q.data() + h * group * dim, out.data() + h * group * dim,
             attention.data() + h * longest);
    }
    cache.observe(0, {.data = attention.data(), .rows = 1, .head_stride = longest});
    cache.compress(0);

    reference.extend(rows(q), rows(k), rows(v), rows(expected));
    for (std::size_t i = 0; i < out.size(); ++i)
      difference = std::max(difference, std::abs(out[i] - expected[i]));
  }
  std::cout << "entries per head  " << cache.length(0, 0) << " (merged "
            << cache.counts(0, 0).merges << " of 300 tokens)\nlike extend       " << std::boolalpha
            << (difference < 1e-4f) << "\n";
}
