// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "attention_errors.hpp"

using namespace support;

TEST_CASE("attention is right for any head_dim, group, length, page size and reduction") {
  check(over_many_settings(1, 120, unchanged), kBands);
}

TEST_CASE("attention is right for every head_dim at every length around a page boundary") {
  Random random(2);
  INFO(random);
  Errors errors;
  for (Index dim : kDims) {
    for (Index length : {1, 15, 16, 17, 31, 33, 48}) {
      measure({.dim = dim, .group = 2, .length = length, .page = 16}, random, errors);
    }
  }
  check(errors, kBands);
}

TEST_CASE("attention is right for every group size up to 16") {
  Random random(3);
  INFO(random);
  Errors errors;
  for (Index group = 1; group <= 16; ++group) {
    for (GroupReduce reduce : kReductions) {
      measure({.dim = 20, .group = group, .length = 70, .page = 32, .reduce = reduce}, random,
              errors);
    }
  }
  check(errors, kBands);
}

TEST_CASE("attention is right with logits of up to 200") {
  check(over_many_settings(4, 120, [](Setting& s, Random&) { s.logits = 200; }), kBands);
}

TEST_CASE("attention is right with weights from 1e-3 to 1e6") {
  check(over_many_settings(5, 120, [](Setting& s, Random&) { s.weighted = true; }), kBands);
}

TEST_CASE("attention is right with large logits and large weights at once") {
  check(over_many_settings(6, 80,
                           [](Setting& s, Random& random) {
                             s.weighted = true;
                             s.logits = random.uniform(4, 200);
                           }),
        kBands);
}

TEST_CASE("attention is right among near-tied keys") {
  check(over_many_settings(7, 80,
                           [](Setting& s, Random& random) {
                             s.near_tie = random.pick(std::vector<double>{1e-2, 1e-4, 1e-6});
                             s.logits = random.uniform(4, 100);
                           }),
        kBands);
}

TEST_CASE("attention over entries of 16 and of 8 bits is right for what is stored") {
  check(over_many_settings<Half>(8, 40, unchanged), kBands);
  const auto of_few = [](Setting& s, Random&) { s.group = std::min<Index>(s.group, 6); };
  check(over_many_settings<BFloat16>(9, 100, of_few), kBands);  // tiles round shares
  check(over_many_settings<Half, BFloat16>(10, 40, unchanged), kBands);
  check(over_many_settings<BFloat16, float>(11, 40, unchanged), kBands);
  check(over_many_settings<Int8>(14, 60, unchanged), kByteBands);
  check(over_many_settings<Int8, Half>(15, 40, unchanged), kByteBands);
  check(over_many_settings<float, Int8>(16, 40, [](Setting& s, Random&) { s.logits = 200; }),
        kByteValueBands);
}

TEST_CASE("attention over long heads loses no precision") {
  // Past the flush of the output's partial sums.
  Random random(12);
  INFO(random);
  Errors errors;
  for (Index page : {16, 64}) {
    for (Index length : {2047, 2048, 5000}) {  // from 2048 on tiles are smaller
      measure({.dim = 16, .group = 2, .length = length, .page = page}, random, errors);
    }
    // Pages that are read in halves.
    measure<BFloat16>({.dim = 128, .group = 2, .length = 2100, .page = page}, random, errors);
    // So many floats that they are far on every processor.
    measure({.dim = 128, .group = 3, .length = 2100, .page = page}, random, errors);
  }
  Bands bands = {{5e-11, 1e-9}, {2e-10, 5e-9},  {1e-8, 2e-7},
                 {2e-8, 5e-7},  {5e-13, 2e-11}, {5e-11, 2e-9}};
  // -ffast-math rounds once more on some processors: 5.01e-9 and 3.4e-9 on a Xeon.
  if (TERSEKV_REORDERS_SUMS == 1) bands.output_largest.high = 8e-9;
  if (TERSEKV_REORDERS_SUMS == 1) bands.attention_largest.high = 5e-9;
  check(errors, bands);
}

TEST_CASE("attention over long heads is right where keys and values are stored differently") {
  Random random(14);
  INFO(random);
  Errors keys, values;
  for (Index group : {2, 3, 4, 7}) {
    const Setting setting{.dim = 64, .group = group, .length = 2100, .page = 64};
    measure<Int8, Half>(setting, random, keys);
    measure<BFloat16, Int8>(setting, random, values);
  }
  check(keys,
        {{5e-9, 5e-8}, {2.5e-8, 3e-7}, {8e-8, 8e-7}, {2e-7, 2e-6}, {2e-10, 2e-9}, {1e-8, 1e-7}});
  check(values,
        {{5e-9, 5e-8}, {3e-8, 3e-7}, {9e-9, 9e-8}, {2e-8, 2e-7}, {1.4e-12, 2e-11}, {9e-11, 2e-9}});
}

TEST_CASE("equal weights leave attention as it is, whatever they are") {
  Random random(13);
  INFO(random);
  const Index n = 40, d = 8;
  const auto q = random.normals(d), k = random.normals(n * d), v = random.normals(n * d);
  for (float weight : {1e-3f, 7.0f, 1e6f}) {
    std::vector<float> plain(8), weighted(8), lse(2);
    for (bool with : {false, true}) {
      tersekv::KVCache<GivenWeights> cache({.num_q_heads = 1, .num_kv_heads = 1, .head_dim = d});
      const std::vector<float> weights(40, with ? weight : 1.0f);
      cache.append(0, tersekv::nhd_view(k.data(), n, 1, d), tersekv::nhd_view(v.data(), n, 1, d),
                   {weights.data(), 1});
      cache.attend(0, tersekv::nhd_view(q.data(), 1, 1, d),
                   tersekv::nhd_view((with ? weighted : plain).data(), 1, 1, d),
                   {.lse = &lse[with ? 1 : 0]});
    }
    CHECK(support::close_all(weighted, plain, 0, 3e-6));
    CHECK(support::close(lse[1] - lse[0], std::log(weight), 0, 1e-5));
  }
}
