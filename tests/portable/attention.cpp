// SPDX-License-Identifier: Apache-2.0

// Attention of every storage against a double loop, and a policy's steps: a program without
// libraries, for processors that are only emulated here. Prints the largest error of each storage;
// ends with 1 where one is out of its band.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "tersekv/tersekv.hpp"

namespace {

using tersekv::Index;

constexpr Index kGroup = 3, kDim = 72, kEntries = 300;

std::vector<float> normals(std::mt19937& random, Index count) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& each : x) each = normal(random);
  return x;
}

/// The largest error of the output of one query row, which saw `visible` entries.
template <class Cache>
double error_of(const Cache& cache, Index visible, const float* query, const float* out) {
  const auto head = cache.head(0, 0);
  std::vector<double> shares;
  double total = 0;
  for (Index i = 0; i < visible; ++i) {
    double logit = 0;
    for (Index j = 0; j < kDim; ++j) {
      logit += static_cast<double>(query[j]) * static_cast<double>(head.key(i, j));
    }
    const double bias = static_cast<double>(cache.policy().alpha()) * std::log(head.weight(i));
    shares.push_back(std::exp(logit / std::sqrt(static_cast<double>(kDim)) + bias));
    total += shares.back();
  }
  double largest = 0;
  for (Index j = 0; j < kDim; ++j) {
    double sum = 0;
    for (Index i = 0; i < visible; ++i) {
      sum += shares[static_cast<std::size_t>(i)] * static_cast<double>(head.value(i, j)) / total;
    }
    largest = std::fmax(largest, std::fabs(sum - static_cast<double>(out[j])));
  }
  return largest;
}

/// Of a prompt's rows, each of which sees the tokens before it. The cache is empty before and
/// after.
template <class Cache>
double prompt_error(Cache& cache, std::mt19937& random) {
  constexpr Index tokens = 21;
  const auto q = normals(random, tokens * kGroup * kDim);
  const auto k = normals(random, tokens * kDim), v = normals(random, tokens * kDim);
  std::vector<float> out(q.size());
  cache.append(0, tersekv::nhd_view(k.data(), tokens, 1, kDim),
               tersekv::nhd_view(v.data(), tokens, 1, kDim));
  cache.attend(0, tersekv::nhd_view(q.data(), tokens, kGroup, kDim),
               tersekv::nhd_view(out.data(), tokens, kGroup, kDim));
  double largest = 0;
  for (Index row = 0; row < tokens * kGroup; ++row) {
    largest = std::fmax(
        largest, error_of(cache, row / kGroup + 1, q.data() + row * kDim, out.data() + row * kDim));
  }
  cache.clear();
  return largest;
}

/// Decode steps at a budget; attention after the last one.
template <class Policy, class Stored>
bool right(const char* policy_name, const Policy& policy) {
  std::mt19937 random(7);
  tersekv::KVCache<Policy, Stored> cache({.num_q_heads = kGroup,
                                          .num_kv_heads = 1,
                                          .head_dim = kDim,
                                          .budget = tersekv::Budget(kEntries / 2)},
                                         policy);
  std::vector<float> q, out(static_cast<std::size_t>(kGroup * kDim));
  const double prompt = prompt_error(cache, random);
  for (Index i = 0; i < kEntries; ++i) {
    q = normals(random, kGroup * kDim);
    const auto k = normals(random, kDim), v = normals(random, kDim);
    cache.extend(tersekv::nhd_view(q.data(), 1, kGroup, kDim),
                 tersekv::nhd_view(k.data(), 1, 1, kDim), tersekv::nhd_view(v.data(), 1, 1, kDim),
                 tersekv::nhd_view(out.data(), 1, kGroup, kDim));
  }
  cache.attend(0, tersekv::nhd_view<const float>(q.data(), 1, kGroup, kDim),
               tersekv::nhd_view(out.data(), 1, kGroup, kDim));
  double largest = prompt;
  for (Index g = 0; g < kGroup; ++g) {
    const Index length = cache.length(0, 0);
    largest =
        std::fmax(largest, error_of(cache, length, q.data() + g * kDim, out.data() + g * kDim));
  }
  // Against bytes queries and shares are rounded to 2^-15 and 2^-16 of their largest.
  const bool bytes = tersekv::Codec<Stored>::scaled;
  const bool fine = largest > (bytes ? 1e-6 : 1e-9) && largest < (bytes ? 2e-4 : 2e-6);
  std::printf("%-10s %-9s %.2g %s\n", policy_name, tersekv::Codec<Stored>::name, largest,
              fine ? "" : "WRONG");
  return fine;
}

template <class Stored>
bool all_right() {
  const bool full = right<tersekv::Full, Stored>("Full", {});
  const bool zsmerge = right<tersekv::ZSMerge, Stored>("ZSMerge", tersekv::make_zsmerge({}));
  const bool keepkv = right<tersekv::KeepKV, Stored>("KeepKV", tersekv::make_keepkv({}));
  return full && zsmerge && keepkv;
}

}  // namespace

int main() {
  const bool fine[] = {all_right<float>(), all_right<tersekv::Half>(),
                       all_right<tersekv::BFloat16>(), all_right<tersekv::Int8>()};
  for (const bool each : fine) {
    if (!each) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
