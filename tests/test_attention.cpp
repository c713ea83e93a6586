// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <ostream>
#include <vector>

#include "given_weights.hpp"
#include "reference_reduce.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

// Attention of a cache against the double-precision reference, over the entries as they are stored:
// what a codec rounds away is not attention's error.

using support::Band;
using support::ErrorStatistics;
using support::GivenWeights;
using support::Random;
using tersekv::BFloat16;
using tersekv::GroupReduce;
using tersekv::Half;
using tersekv::Index;
using tersekv::Int8;

namespace {

struct Setting {
  Index dim = 64, kv_heads = 1, group = 1, length = 100, page = 64;
  float alpha = 0;
  GroupReduce reduce = GroupReduce::sum;
  double logits = 4;      // about the largest
  double near_tie = 0;    // keys differ by about this much; 0: not at all alike
  bool weighted = false;  // weights from 1e-3 to 1e6
  bool rounded = false;   // queries that BFloat16 holds exactly
};

std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << "head_dim " << s.dim << ", kv heads " << s.kv_heads << ", group " << s.group
             << ", length " << s.length << ", page " << s.page << ", alpha " << s.alpha;
}

const std::vector<Index> kDims{1, 3, 8, 20, 64, 80, 96, 128, 192, 256};
const std::vector<Index> kPages{16, 32, 64, 128, 256};
const std::vector<float> kAlphas{0.0f, 0.6f, 1.0f};
const std::vector<GroupReduce> kReductions{GroupReduce::sum, GroupReduce::mean, GroupReduce::max};

Setting random_setting(Random& random) {
  Setting s;
  s.dim = random.pick(kDims);
  s.kv_heads = random.integer(1, 2);
  s.group = random.chance(0.3) ? random.integer(1, 16) : random.integer(1, 4);
  s.page = random.pick(kPages);
  // Half of the lengths at a page boundary, or one beside it.
  s.length = random.integer(1, 300);
  if (random.chance(0.5)) s.length = s.length / s.page * s.page + random.integer(-1, 1);
  s.length = std::clamp<Index>(s.length, 1, 300);
  s.alpha = random.pick(kAlphas);
  s.reduce = random.pick(kReductions);
  s.rounded = random.chance(0.5);
  return s;
}

/// Errors of one regime, against the size that rounding acts on: a logit is as wrong as its largest
/// terms are rounded, lse is as wrong as the logits, shares and outputs relatively as much.
struct Errors {
  ErrorStatistics output, lse, attention;
};

/// 1 + the largest sum of the magnitudes that make up a biased logit.
double rounding_unit(const reference::Vector& query,
                     const std::vector<support::ReferenceEntry>& entries, double alpha,
                     double scale) {
  double largest = 0;
  for (const auto& entry : entries) {
    double terms = alpha * std::fabs(std::log(entry.weight));
    for (std::size_t j = 0; j < query.size(); ++j)
      terms += scale * std::fabs(query[j] * entry.key[j]);
    largest = std::max(largest, terms);
  }
  return 1 + largest;
}

template <class KeyCodec = float, class ValueCodec = KeyCodec>
void measure(const Setting& s, Random& random, Errors& errors) {
  const Index q_heads = s.kv_heads * s.group, rows = std::min<Index>(s.length, 3);
  auto q = random.normals(rows * q_heads * s.dim, s.logits / 4);
  for (float& x : q) x = s.rounded ? tersekv::to_float(tersekv::from_float<BFloat16>(x)) : x;
  auto k = random.normals(s.length * s.kv_heads * s.dim);
  const auto v = random.normals(s.length * s.kv_heads * s.dim);
  if (s.near_tie > 0) {
    for (std::size_t i = 0; i < k.size(); ++i) {
      const std::size_t row = static_cast<std::size_t>(s.kv_heads * s.dim);
      if (i >= row) k[i] = k[i % row] + static_cast<float>(s.near_tie) * k[i];
    }
  }
  std::vector<float> weights(static_cast<std::size_t>(s.length * s.kv_heads), 1.0f);
  if (s.weighted) {
    for (float& w : weights) w = std::pow(10.0f, random.uniform(-3, 6));
  }

  GivenWeights policy;
  policy.exponent = s.alpha;
  tersekv::KVCache<GivenWeights, KeyCodec, ValueCodec> cache({.num_q_heads = q_heads,
                                                              .num_kv_heads = s.kv_heads,
                                                              .head_dim = s.dim,
                                                              .group_reduce = s.reduce,
                                                              .page_size = s.page},
                                                             policy);
  cache.append(0, tersekv::nhd_view(k.data(), s.length, s.kv_heads, s.dim),
               tersekv::nhd_view<const float>(v.data(), s.length, s.kv_heads, s.dim),
               {weights.data(), s.kv_heads});
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(rows * q_heads)),
      attention(static_cast<std::size_t>(rows * s.kv_heads * s.length));
  cache.attend(
      0, tersekv::nhd_view<const float>(q.data(), rows, q_heads, s.dim),
      tersekv::nhd_view(out.data(), rows, q_heads, s.dim),
      {.lse = lse.data(), .rows = {attention.data(), rows, s.kv_heads * s.length, s.length}});

  const double scale = 1 / std::sqrt(static_cast<double>(s.dim));
  for (Index h = 0; h < s.kv_heads; ++h) {
    const auto entries = support::reference_entries(cache, h);
    double largest_value = 0;
    for (const auto& entry : entries) {
      for (double x : entry.value) largest_value = std::max(largest_value, std::fabs(x));
    }
    for (Index r = 0; r < rows; ++r) {
      const auto visible = static_cast<std::size_t>(s.length - (rows - 1 - r));
      std::vector<reference::Attention> heads;
      double largest_unit = 0;
      for (Index g = 0; g < s.group; ++g) {
        const Index row = r * q_heads + h * s.group + g;
        const reference::Vector query(q.begin() + row * s.dim, q.begin() + (row + 1) * s.dim);
        heads.push_back(reference::attend(query, entries, visible, s.alpha, scale));
        const double unit = rounding_unit(query, entries, s.alpha, scale);
        largest_unit = std::max(largest_unit, unit);
        errors.lse.add(lse[static_cast<std::size_t>(row)], heads.back().lse, unit);
        for (Index j = 0; j < s.dim; ++j) {
          errors.output.add(out[static_cast<std::size_t>(row * s.dim + j)],
                            heads.back().output[static_cast<std::size_t>(j)], unit * largest_value);
        }
      }
      const auto want = reference::reduce_group(heads, support::of_reference(s.reduce));
      const double unit =
          largest_unit * static_cast<double>(s.reduce == GroupReduce::sum ? s.group : 1);
      for (std::size_t i = 0; i < visible; ++i) {
        const Index at = (r * s.kv_heads + h) * s.length + static_cast<Index>(i);
        errors.attention.add(attention[static_cast<std::size_t>(at)], want[i], unit);
      }
    }
  }
}

struct Bands {
  Band output_mean, output_largest, lse_mean, lse_largest, attention_mean, attention_largest;
};

void check(const Errors& errors, const Bands& bands) {
  CHECK(within(errors.output, bands.output_mean, bands.output_largest));
  CHECK(within(errors.lse, bands.lse_mean, bands.lse_largest));
  CHECK(within(errors.attention, bands.attention_mean, bands.attention_largest));
}

/// Errors over many random settings, each changed by `change`.
template <class KeyCodec = float, class ValueCodec = KeyCodec, class Change>
Errors over_many_settings(std::uint64_t seed, int count, Change change) {
  Random random(seed);
  Errors errors;
  for (int i = 0; i < count; ++i) {
    Setting s = random_setting(random);
    change(s, random);
    INFO(random << ", setting " << i << ": " << s);
    const std::size_t broken = errors.output.broken();
    measure<KeyCodec, ValueCodec>(s, random, errors);
    CHECK(errors.output.broken() == broken);
  }
  return errors;
}

// Three times the largest figures seen (g++ and clang, SSE2 to AVX-512, -O1 to -O3 -ffast-math) and
// a third of the smallest, whatever the logits and weights. Digits round where entries are bytes.
constexpr Bands kBands{{1e-10, 5e-9},  {3e-9, 1.5e-7}, {3e-9, 1.5e-7},
                       {3e-8, 1.2e-6}, {5e-12, 2e-9},  {5e-10, 1e-7}};
constexpr Bands kByteBands{{2e-8, 2.5e-7}, {6e-7, 8e-6},   {1.5e-7, 2.1e-6},
                           {3e-6, 3.6e-5}, {3e-9, 4.2e-8}, {3e-7, 5e-6}};
constexpr Bands kByteValueBands{{3e-10, 3e-9},  {4e-7, 4e-6},  {3e-9, 1.5e-7},
                                {3e-8, 1.2e-6}, {5e-12, 2e-9}, {5e-10, 1e-7}};

void unchanged(Setting&, Random&) {}

}  // namespace

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
  }
  Bands bands = {{5e-11, 1e-9}, {2e-10, 5e-9},  {1e-8, 2e-7},
                 {2e-8, 5e-7},  {5e-13, 2e-11}, {5e-11, 2e-9}};
  // -ffast-math rounds once more on some processors: 5.01e-9 and 3.4e-9 on a Xeon.
  if (TERSEKV_REORDERS_SUMS == 1) bands.output_largest.high = 8e-9;
  if (TERSEKV_REORDERS_SUMS == 1) bands.attention_largest.high = 5e-9;
  check(errors, bands);
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
