// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "bare_head.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/int8.hpp"
#include "tersekv/tersekv.hpp"

// Keys and values of one byte an element: rounding, and who is rounded when.

using support::ErrorStatistics;
using support::Random;
using tersekv::Index;
using tersekv::Int8;

namespace {

std::vector<float> rounded(std::vector<float> row, float* scale = nullptr) {
  std::vector<float> result;
  const float s = tersekv::to_int8(row.data(), std::ssize(row),
                                   [&](Index, Int8 x) { result.push_back(tersekv::to_float(x)); });
  for (float& x : result) x *= s;
  if (scale != nullptr) *scale = s;
  return result;
}

}  // namespace

TEST_CASE("a row is rounded to the nearest of 255 multiples of its scale") {
  Random random(1);
  INFO(random);
  ErrorStatistics errors;
  for (int i = 0; i < 500; ++i) {
    const auto row =
        random.normals(random.integer(1, 300), std::pow(10.0, random.uniform(-14, 14)));
    float most = 0, scale = 0;
    for (float x : row) most = std::max(most, std::fabs(x));
    const auto got = rounded(row, &scale);
    CHECK(support::close(scale, most / 127, 1e-6, 0));
    for (std::size_t j = 0; j < row.size(); ++j) errors.add(got[j], row[j], scale);
  }
  // Errors are uniform up to half a step: a quarter on average.
  CHECK(support::within(errors, {0.24, 0.26}, {0.499, 0.50002}));
}

TEST_CASE("rows of equal, zero, tiny and huge numbers are stored as they are") {
  for (const float size : {1.0f, -3.0f, 0x1p-80f, 1e15f, -1e15f}) {
    const std::vector<float> row(5, size);
    CHECK(support::close_all(rounded(row), row, 2e-7, 0));
  }
  for (const float size : {0.0f, -0.0f, 1e-28f, -1e-40f}) {
    CHECK(rounded(std::vector<float>(5, size)) == std::vector<float>(5, 0.0f));
  }
  CHECK(rounded({127, -126, 1, 0, -0.4f}) == std::vector<float>{127, -126, 1, 0, 0});
}

TEST_CASE("only the entry that absorbs another is rounded again") {
  Random random(2);
  INFO(random);
  const Index dim = 24, budget = 12;
  tersekv::KVCache<tersekv::WeightedKV, Int8> cache(
      {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim, .budget = budget, .page_size = 16});
  std::vector<float> out(24);
  const auto feed = [&] {
    const auto q = random.normals(dim), k = random.normals(dim), v = random.normals(dim);
    cache.extend(tersekv::nhd_view(q.data(), 1, 1, dim), tersekv::nhd_view(k.data(), 1, 1, dim),
                 tersekv::nhd_view(v.data(), 1, 1, dim), tersekv::nhd_view(out.data(), 1, 1, dim));
  };
  for (Index i = 0; i < budget; ++i) feed();
  int changed = 0;
  for (int step = 0; step < 100; ++step) {
    const auto before = cache.entries(0, 0);
    feed();
    for (const auto& entry : cache.entries(0, 0)) {
      for (const auto& old : before) {
        if (old.position != entry.position) continue;
        CHECK(old.key == entry.key);  // a policy that merges values alone
        changed += old.value != entry.value ? 1 : 0;
      }
    }
    CHECK(changed <= step + 1);
  }
  CHECK(changed > 60);  // the newest token absorbs one now and then, and was not there before
}

TEST_CASE("swapped and moved entries keep their bytes and scales") {
  Random random(3);
  INFO(random);
  const tersekv::Shape shape{.group_size = 1, .head_dim = 7, .scale = 1};
  support::BareHead<tersekv::ZSMerge, Int8, Int8> bare(tersekv::make_zsmerge({}), shape, 20, 40,
                                                       16);
  for (int i = 0; i < 30; ++i) {
    const auto k = random.normals(7, 1 + i), v = random.normals(7, 100 - 3 * i);
    bare.push(k.data(), v.data());
  }
  const auto head = bare.head();
  const auto row = [&](Index slot) {
    std::vector<float> numbers;
    for (Index j = 0; j < 7; ++j) numbers.push_back(head.key(slot, j));
    for (Index j = 0; j < 7; ++j) numbers.push_back(head.value(slot, j));
    return numbers;
  };
  const auto a = row(2), b = row(27);
  head.swap_entries(2, 27);
  CHECK(row(2) == b);
  CHECK(row(27) == a);
  head.copy_entry(27, 3);
  CHECK(row(3) == a);
}

TEST_CASE("mixed storage: bytes for one of keys and values") {
  const tersekv::CacheConfig config{.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 64};
  const std::vector<float> x(64, 0.5f);
  std::vector<float> out(64);
  const auto feed = [&](auto cache) {
    cache.extend(tersekv::nhd_view(x.data(), 1, 1, 64), tersekv::nhd_view(x.data(), 1, 1, 64),
                 tersekv::nhd_view(x.data(), 1, 1, 64), tersekv::nhd_view(out.data(), 1, 1, 64));
    CHECK(support::close_all(out, x, 1e-6, 0));
    return cache.memory();
  };
  const auto keys = feed(tersekv::KVCache<tersekv::Full, Int8, tersekv::Half>(config));
  CHECK(keys.keys == 68);
  CHECK(keys.values == 128);
  const auto values = feed(tersekv::KVCache<tersekv::Full, tersekv::Half, Int8>(config));
  CHECK(values.keys == 128);
  CHECK(values.values == 68);
}

TEST_CASE("values as small as are kept take part in attention") {
  // Two pages whose shares are some 1e-30: e^0 of 2e-27 and e^-3 of -2e-27.
  const Index n = 128, page = 64;
  const float size = 2e-27f;
  tersekv::KVCache<tersekv::Full, Int8> cache(
      {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1, .scale = 1.0f, .page_size = page});
  std::vector<float> keys(static_cast<std::size_t>(n)), values(keys.size(), size);
  std::fill(keys.begin() + page, keys.end(), -3.0f);
  std::fill(values.begin() + page, values.end(), -size);
  cache.append(0, tersekv::nhd_view(keys.data(), n, 1, 1),
               tersekv::nhd_view(values.data(), n, 1, 1));
  const float q = 1.0f;
  float out = 0;
  cache.attend(0, tersekv::nhd_view(&q, 1, 1, 1), tersekv::nhd_view(&out, 1, 1, 1));
  const double expected = (1 - std::exp(-3.0)) / (1 + std::exp(-3.0));
  CHECK(std::abs(double{out} / double{size} / expected - 1) < 1e-4);
}
