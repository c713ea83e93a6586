// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "support/random.hpp"
#include "tersekv/policies/h2o.hpp"

// A few tiles and splits through both bodies of attention and the step that joins them: small
// enough to be compiled again with every planted fault (faults.py).

using namespace tersekv;
using on_device::Array;
using support::Random;

namespace {

constexpr Index kDim = 32, kGroup = 4, kEntries = 200;
constexpr int kSplits = 4;  // one tile each

template <class T>
std::vector<T> random_row(Random& random, Index count) {
  std::vector<T> row;
  for (float x : random.normals(count)) row.push_back(from_float<T>(x));
  return row;
}

template <class T>
void check(double tolerance) {
  using Dims = tersekv::cuda::HeadDims<kDim>;
  Random random(1);
  const CacheConfig config{
      .num_q_heads = kGroup, .num_kv_heads = 1, .head_dim = kDim, .budget = 1000};
  const auto q = random_row<T>(random, kGroup * kDim), k = random_row<T>(random, kEntries * kDim),
             v = random_row<T>(random, kEntries * kDim);
  tersekv::KVCache<H2O, T> cpu(config);
  cpu.append(0, nhd_view(k.data(), kEntries, 1, kDim), nhd_view(v.data(), kEntries, 1, kDim));
  std::vector<T> want(q.size());
  std::vector<float> want_rows(kEntries);
  cpu.template attend<T>(0, nhd_view(q.data(), 1, kGroup, kDim),
                         nhd_view(want.data(), 1, kGroup, kDim),
                         {.rows = {want_rows.data(), 1, kEntries, kEntries}});

  tersekv::cuda::BasicPagePool<host_cuda::Runtime> pool(8);
  tersekv::cuda::BasicWorkspace<host_cuda::Runtime> workspace;
  on_device::KVCache<H2O, T, T, Dims> cache(
      config, {}, {.max_length = 256, .tuning = {.splits = kSplits}}, pool, workspace);
  const Array<T> there_q(q), there_k(k), there_v(v), out(std::ssize(q));
  const Array<float> rows(kEntries);
  cache.template append<const T>(0, nhd_view<const T>(there_k.data(), kEntries, 1, kDim),
                                 nhd_view<const T>(there_v.data(), kEntries, 1, kDim));
  cache.template attend<T>(0, nhd_view<const T>(there_q.data(), 1, kGroup, kDim),
                           nhd_view(out.data(), 1, kGroup, kDim),
                           {.rows = {rows.data(), 1, kEntries, kEntries}});
  const auto got = out.host();
  const auto got_rows = rows.host();
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(to_float(got[i])) - to_float(want[i]);
    REQUIRE(std::abs(difference) <= tolerance);
  }
  for (std::size_t i = 0; i < want_rows.size(); ++i) {
    REQUIRE(std::abs(got_rows[i] - want_rows[i]) <= 1e-3f * want_rows[i]);
  }

  // The states in the order of the splits, to the bit.
  const float *part_out = workspace.part_out(), *max = workspace.part_max(),
              *part_sum = workspace.part_sum();
  for (Index g = 0; g < kGroup; ++g) {
    const Index part = g * kSplits;
    const float highest = *std::max_element(max + part, max + part + kSplits);
    for (Index j = 0; j < kDim; ++j) {
      float sum = 0, total = 0;
      for (int s = 0; s < kSplits; ++s) {
        const float factor = std::exp(max[part + s] - highest);
        sum += factor * part_sum[part + s];
        total += factor * part_out[(part + s) * kDim + j];
      }
      const auto at = static_cast<std::size_t>(g * kDim + j);
      REQUIRE(to_float(got[at]) == to_float(from_float<T>(total / sum)));
    }
  }
}

}  // namespace

TEST_CASE("splits: ordinary cores' states agree with the CPU and are joined in order") {
  check<float>(1e-5);
}

TEST_CASE("splits: tensor cores' states agree with the CPU and are joined in order") {
  check<Half>(4e-3);
}
