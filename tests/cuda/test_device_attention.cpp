// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "given_weights.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"

// Attention on the device against the CPU's, entry by entry: outputs, lse and attention, for every
// body that the launcher may choose.

using namespace tersekv;
using on_device::Array;
using support::GivenWeights;
using support::Random;

namespace {

struct Setting {
  Index dim = 64, kv_heads = 2, group = 1, length = 100, rows = 1;
  int splits = 0;
  float alpha = 0;
  GroupReduce reduce = GroupReduce::sum;
  double logits = 4;    // about the largest
  bool rising = false;  // weights, from the first entry to the last
};

std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << "head_dim " << s.dim << ", group " << s.group << ", length " << s.length
             << ", rows " << s.rows << ", splits " << s.splits << ", alpha " << s.alpha;
}

/// Relative to the largest value: outputs are rounded to T, probabilities of tensor cores to the
/// values' type.
struct Tolerance {
  double out, lse, attention;
};

template <class T>
std::vector<T> narrowed(const std::vector<float>& from) {
  std::vector<T> to;
  for (float x : from) to.push_back(from_float<T>(x));
  return to;
}

// Few head_dims for each kind of storage: every one is several kernels to compile, and sanitizers
// triple that. A race shows at any, reading too far at the odd ones.
#if defined(__SANITIZE_THREAD__)
using FloatDims = tersekv::cuda::HeadDims<32, 64>;
using HalfDims = tersekv::cuda::HeadDims<32>;
using MixedDims = tersekv::cuda::HeadDims<32>;
using LargeDims = tersekv::cuda::HeadDims<96>;
#elif defined(__SANITIZE_ADDRESS__)
using FloatDims = tersekv::cuda::HeadDims<8, 32, 64>;
using HalfDims = tersekv::cuda::HeadDims<32, 80>;
using MixedDims = tersekv::cuda::HeadDims<80>;
using LargeDims = tersekv::cuda::HeadDims<192>;
#else
using FloatDims = tersekv::cuda::HeadDims<8, 32, 64, 128>;
using HalfDims = tersekv::cuda::HeadDims<32, 64, 80>;
using MixedDims = tersekv::cuda::HeadDims<32, 80>;
using LargeDims = tersekv::cuda::HeadDims<96, 192, 256>;
#endif

template <int... dims>
std::vector<Index> list(tersekv::cuda::HeadDims<dims...>) {
  return {dims...};
}

template <class Key, class Value, class T, class Dims>
void compare(const Setting& s, Random& random, const Tolerance& tolerance) {
  INFO(s << ", " << random);
  const Index q_heads = s.kv_heads * s.group;
  const auto q = narrowed<T>(random.normals(s.rows * q_heads * s.dim, s.logits / 4));
  const auto k = narrowed<T>(random.normals(s.length * s.kv_heads * s.dim));
  const auto v = narrowed<T>(random.normals(s.length * s.kv_heads * s.dim));
  std::vector<float> weights;
  for (Index i = 0; i < s.length * s.kv_heads; ++i) {
    const double place = static_cast<double>(i) / static_cast<double>(s.length * s.kv_heads);
    weights.push_back(
        std::pow(10.0f, s.rising ? static_cast<float>(9 * place - 3) : random.uniform(-3, 6)));
  }
  GivenWeights policy;
  policy.exponent = s.alpha;
  const CacheConfig config{.num_q_heads = q_heads,
                           .num_kv_heads = s.kv_heads,
                           .head_dim = s.dim,
                           .group_reduce = s.reduce};

  tersekv::KVCache<GivenWeights, Key, Value> cpu(config, policy);
  const auto shaped = [&](auto* data, Index tokens, Index heads) {
    return nhd_view(data, tokens, heads, s.dim);
  };
  cpu.append(0, shaped(k.data(), s.length, s.kv_heads), shaped(v.data(), s.length, s.kv_heads),
             {weights.data(), s.kv_heads});
  std::vector<T> want(q.size());
  std::vector<float> want_lse(static_cast<std::size_t>(s.rows * q_heads)),
      want_rows(static_cast<std::size_t>(s.rows * s.kv_heads * s.length));
  const AttentionRows<float> rows{want_rows.data(), s.rows, s.kv_heads * s.length, s.length};
  cpu.template attend<T>(0, shaped(q.data(), s.rows, q_heads), shaped(want.data(), s.rows, q_heads),
                         {want_lse.data(), rows});

  const Array<T> there_q(q), there_k(k), there_v(v), out(std::ssize(q), from_float<T>(99.0f));
  const Array<float> there_weights(weights), lse(std::ssize(want_lse), -1.0f),
      attention(std::ssize(want_rows), 0.0f);
  on_device::KVCache<GivenWeights, Key, Value, Dims> device(
      config, policy,
      {.max_chunk = s.length, .max_length = s.length, .tuning = {.splits = s.splits}});
  device.append(0, shaped(there_k.data(), s.length, s.kv_heads),
                shaped(there_v.data(), s.length, s.kv_heads), {there_weights.data(), s.kv_heads});
  AttentionRows<float> there_rows = rows;
  there_rows.data = attention.data();
  device.template attend<T>(0, shaped(there_q.data(), s.rows, q_heads),
                            shaped(out.data(), s.rows, q_heads), {lse.data(), there_rows});
  device.synchronize();

  const auto got = out.host();
  const auto got_lse = lse.host(), got_rows = attention.host();
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    const double difference = static_cast<double>(to_float(got[i])) - to_float(want[i]);
    REQUIRE(std::abs(difference) <= tolerance.out);
  }
  for (std::size_t i = 0; i < want_lse.size(); ++i) {
    REQUIRE(std::abs(got_lse[i] - want_lse[i]) <= tolerance.lse * (1 + std::abs(want_lse[i])));
  }
  for (std::size_t i = 0; i < want_rows.size(); ++i) {  // what a row does not see stays 0 in both
    const double want_i = static_cast<double>(want_rows[i]);
    REQUIRE(std::abs(static_cast<double>(got_rows[i]) - want_i) <=
            tolerance.attention * want_i + 1e-7);
  }
}

constexpr Tolerance kFloat{2e-5, 2e-6, 5e-4};
// The 16-bit rounding of an output of up to 4, or of its probabilities.
constexpr Tolerance kHalf{5e-3, 2e-5, 2e-3}, kBFloat16{4e-2, 2e-5, 2e-3};

/// Random settings of each kind of storage.
constexpr int kSettings = support::kThreadSanitizer ? 3 : 8;
const std::vector<Index> kLengths{1, 2, 63, 64, 65, 130, 200};
const std::vector<GroupReduce> kReductions{GroupReduce::sum, GroupReduce::mean, GroupReduce::max};

Setting random_setting(Random& random, const std::vector<Index>& dims,
                       const std::vector<Index>& groups) {
  Setting s;
  s.dim = random.pick(dims);
  s.group = random.pick(groups);
  s.kv_heads = random.integer(1, 2);
  s.length = random.pick(kLengths);
  s.rows = std::min(s.length, random.pick(std::vector<Index>{1, 1, 1, 2, 5}));
  s.splits = static_cast<int>(random.integer(0, 3));
  s.alpha = random.pick(std::vector<float>{0.0f, 0.6f, 1.0f});
  s.reduce = random.pick(kReductions);
  return s;
}

}  // namespace

TEST_CASE("device: attention on ordinary cores agrees with the CPU, float", "[small]") {
  on_device::require_device();
  Random random(1);
  for (int i = 0; i < 3 * kSettings; ++i) {
    compare<float, float, float, FloatDims>(
        random_setting(random, list(FloatDims{}), {1, 2, 3, 4, 7, 8, 16}), random, kFloat);
  }
}

TEST_CASE("device: attention on ordinary cores agrees with the CPU, 16 bits and mixed") {
  on_device::require_device();
  Random random(2);
  for (int i = 0; i < kSettings; ++i) {
    compare<Half, Half, Half, HalfDims>(random_setting(random, list(HalfDims{}), {1, 2, 3}), random,
                                        kHalf);
    compare<BFloat16, Half, float, MixedDims>(
        random_setting(random, list(MixedDims{}), {1, 2, 4, 9}), random, kFloat);
    compare<Half, float, Half, MixedDims>(random_setting(random, list(MixedDims{}), {1, 4}), random,
                                          kHalf);
  }
}

TEST_CASE("device: attention on tensor cores agrees with the CPU", "[small]") {
  on_device::require_device();
  Random random(3);
  for (int i = 0; i < kSettings; ++i) {
    const std::vector<Index> groups{4, 5, 7, 8, 16};
    compare<Half, Half, Half, HalfDims>(random_setting(random, list(HalfDims{}), groups), random,
                                        kHalf);
    compare<BFloat16, BFloat16, BFloat16, MixedDims>(
        random_setting(random, list(MixedDims{}), groups), random, kBFloat16);
    compare<BFloat16, Half, BFloat16, MixedDims>(random_setting(random, list(MixedDims{}), groups),
                                                 random, kBFloat16);
  }
}

TEST_CASE("device: attention at the larger head_dims agrees with the CPU") {
  on_device::require_device();
  Random random(6);
  for (const Index dim : list(LargeDims{})) {
    for (const Index group : {1, 4}) {
      for (const Index rows : {1, 17}) {  // of group 4, 17 are more than warps share
        const Setting s{.dim = dim, .kv_heads = 1, .group = group, .length = 70, .rows = rows};
        compare<Half, Half, Half, LargeDims>(s, random, kHalf);
      }
    }
  }
}

TEST_CASE("device: attention of a prompt's rows agrees with the CPU") {
  on_device::require_device();
  Random random(4);
  for (const Index rows : {Index{17}, Index{70}}) {  // more query rows than a tile holds
    Setting s{.dim = 32, .kv_heads = 1, .group = 3, .length = 130, .rows = rows, .alpha = 1.0f};
    compare<float, float, float, FloatDims>(s, random, kFloat);
    compare<Half, Half, Half, HalfDims>(s, random, kHalf);
    s.splits = 2;
    compare<Half, Half, Half, HalfDims>(s, random, kHalf);
  }
}

TEST_CASE("device: more splits than a warp has lanes are joined") {
  on_device::require_device();
  Random random(7);
  Setting s{.dim = 32, .kv_heads = 1, .length = 33 * 64 - 7, .splits = 33, .alpha = 1};
  s.rising = true;  // so that the last of them is what the others are relative to
  for (s.group = 1; s.group <= 2; ++s.group) {
    compare<float, float, float, FloatDims>(s, random, kFloat);
  }
}

TEST_CASE("device: logits of +-200 stay finite and exact enough") {
  on_device::require_device();
  Random random(5);
  for (const int splits : {1, 3}) {
    Setting s{.dim = 64, .group = 4, .length = 150, .splits = splits, .logits = 200};
    compare<float, float, float, FloatDims>(s, random, {3e-3, 2e-6, 2e-2});
    s.group = 1;
    compare<float, float, float, FloatDims>(s, random, {3e-3, 2e-6, 2e-2});
  }
}
