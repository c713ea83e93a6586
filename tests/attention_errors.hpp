// SPDX-License-Identifier: Apache-2.0
#pragma once

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

namespace support {

using tersekv::BFloat16;
using tersekv::GroupReduce;
using tersekv::Half;
using tersekv::Index;
using tersekv::Int8;

struct Setting {
  Index dim = 64, kv_heads = 1, group = 1, length = 100, page = 64;
  float alpha = 0;
  GroupReduce reduce = GroupReduce::sum;
  double logits = 4;      // about the largest
  double near_tie = 0;    // keys differ by about this much; 0: not at all alike
  bool weighted = false;  // weights from 1e-3 to 1e6
  bool rounded = false;   // queries that BFloat16 holds exactly
};

inline std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << "head_dim " << s.dim << ", kv heads " << s.kv_heads << ", group " << s.group
             << ", length " << s.length << ", page " << s.page << ", alpha " << s.alpha;
}

inline const std::vector<Index> kDims{1, 3, 8, 20, 64, 80, 96, 128, 192, 256};
inline const std::vector<Index> kPages{16, 32, 64, 128, 256};
inline const std::vector<float> kAlphas{0.0f, 0.6f, 1.0f};
inline const std::vector<GroupReduce> kReductions{GroupReduce::sum, GroupReduce::mean,
                                                  GroupReduce::max};

inline Setting random_setting(Random& random) {
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
inline double rounding_unit(const reference::Vector& query,
                            const std::vector<ReferenceEntry>& entries, double alpha,
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
    const auto entries = reference_entries(cache, h);
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
      const auto want = reference::reduce_group(heads, of_reference(s.reduce));
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

inline void check(const Errors& errors, const Bands& bands) {
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
inline constexpr Bands kBands{{1e-10, 5e-9},  {3e-9, 1.5e-7}, {3e-9, 1.5e-7},
                              {3e-8, 1.2e-6}, {5e-12, 2e-9},  {5e-10, 1e-7}};
inline constexpr Bands kByteBands{{2e-8, 2.5e-7}, {6e-7, 8e-6},   {1.5e-7, 2.1e-6},
                                  {3e-6, 3.6e-5}, {3e-9, 4.2e-8}, {3e-7, 5e-6}};
inline constexpr Bands kByteValueBands{{3e-10, 3e-9},  {4e-7, 4e-6},  {3e-9, 1.5e-7},
                                       {3e-8, 1.2e-6}, {5e-12, 2e-9}, {5e-10, 1e-7}};

inline void unchanged(Setting&, Random&) {}

}  // namespace support
