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

// One query token against the first `visible` entries of a KV head. `out` is [group, head_dim],
// `attention` [visible]: the softmax that the output used, compensation included, reduced over the
// group as CacheConfig says. (head.key(slot, j), head.value(slot, j) read any storage, one number
// at a time; what pages look like: PageLayout in tersekv/page_layout.hpp.)
void attend(const Cache& cache, Index kv_head, Index visible, const float* query, float* out,
            float* attention) {
  const auto head = cache.head(0, kv_head);
  const Index dim = head.head_dim(), page = head.page_size();
  const float scale = head.shape().scale, alpha = cache.policy().alpha();
  std::fill_n(attention, visible, 0.0f);
  std::vector<float> row(static_cast<std::size_t>(visible));
  for (Index g = 0; g < head.shape().group_size; ++g, query += dim, out += dim) {
    float highest = 0, sum = 0;
    for (Index i = 0; i < visible; ++i) {
      const tersekv::Half* keys = head.key_page(i / page) + i % page;  // [head_dim, page_size]
      float product = 0;
      for (Index j = 0; j < dim; ++j) product += query[j] * to_float(keys[j * page]);
      row[i] = scale * product + alpha * std::log(head.weight(i));
      highest = i == 0 ? row[i] : std::max(highest, row[i]);
    }
    for (float& x : row) sum += x = std::exp(x - highest);
    std::fill_n(out, dim, 0.0f);
    for (Index i = 0; i < visible; ++i) {
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
  float difference = 0;
  for (int token = 0; token < 300;) {
    const Index n = token == 0 ? 40 : 1;  // a prompt, then token by token
    const auto drawn = [&](Index heads) {
      std::vector<float> x(static_cast<std::size_t>(n * heads * dim));
      for (float& element : x) element = static_cast<float>(random()) * 0x1p-31f - 1;
      return x;
    };
    const auto rows = [n](std::vector<float>& x) {
      return tersekv::nhd_view(x.data(), n, static_cast<Index>(x.size()) / (n * dim), dim);
    };
    auto q = drawn(kv_heads * group), k = drawn(kv_heads), v = drawn(kv_heads);
    std::vector<float> out(q.size()), expected(q.size());

    cache.append(0, rows(k), rows(v));  // into the last slots, in order
    // Every head's row has room for the longest; a head's length is what the policy made of it.
    const Index longest = cache.longest(0);
    std::vector<float> attention(static_cast<std::size_t>(n * kv_heads * longest));
    for (Index t = 0; t < n; ++t) {
      for (Index h = 0; h < kv_heads; ++h) {
        const Index visible = cache.length(0, h) - (n - 1 - t);  // itself, and none that follows
        const Index at = (t * kv_heads + h) * group * dim;
        attend(cache, h, visible, q.data() + at, out.data() + at,
               attention.data() + (t * kv_heads + h) * longest);
      }
    }
    // Of a prompt's rows the policy takes the last ones that it wants; these could be all there is.
    const Index wanted = cache.policy().observed_rows(n);
    cache.observe(0, {.data = attention.data() + (n - wanted) * kv_heads * longest,
                      .rows = wanted,
                      .row_stride = kv_heads * longest,
                      .head_stride = longest});
    cache.compress(0);

    reference.extend(rows(q), rows(k), rows(v), rows(expected));
    for (std::size_t i = 0; i < out.size(); ++i)
      difference = std::max(difference, std::abs(out[i] - expected[i]));
    token += static_cast<int>(n);
  }
  std::cout << "entries per head  " << cache.length(0, 0) << " (merged "
            << cache.counts(0, 0).merges << " of 300 tokens)\nlike extend       " << std::boolalpha
            << (difference < 1e-4f) << "\n";
}
