// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

/// Slow, obvious oracles in double precision. They share no code with the library on purpose.
namespace reference {

using Integer = std::int64_t;
using Vector = std::vector<double>;

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// ln(sum exp(x)) of one or more finite terms.
inline double log_sum_exp(const Vector& x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

/// What one query gets: per entry its logit (without the weight) and its share, and the output.
struct Attention {
  Vector logits;
  Vector shares;
  double lse = 0;
  Vector output;
};

/// Compensated softmax of `query` over the first `visible` entries, each with key, value, weight:
/// shares softmax(scale <q, k> + alpha ln w).
template <class Entry>
Attention attend(const Vector& query, const std::vector<Entry>& entries, std::size_t visible,
                 double alpha, double scale) {
  if (visible == 0 || visible > entries.size()) throw std::invalid_argument("nothing to attend to");
  Attention result;
  Vector terms;
  for (std::size_t i = 0; i < visible; ++i) {
    result.logits.push_back(scale * dot(query, entries[i].key));
    terms.push_back(result.logits[i] + (alpha == 0 ? 0 : alpha * std::log(entries[i].weight)));
  }
  result.lse = log_sum_exp(terms);
  result.output.assign(entries[0].value.size(), 0);
  for (std::size_t i = 0; i < visible; ++i) {
    result.shares.push_back(std::exp(terms[i] - result.lse));
    for (std::size_t x = 0; x < result.output.size(); ++x)
      result.output[x] += result.shares[i] * entries[i].value[x];
  }
  return result;
}

enum class GroupReduce { sum, mean, max };

/// One number per entry from the shares that the query heads of a group give it.
inline Vector reduce_group(const std::vector<Attention>& heads, GroupReduce how) {
  Vector reduced(heads.at(0).shares.size(), 0);
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    for (const Attention& head : heads) {
      if (how == GroupReduce::max) {
        reduced[i] = std::max(reduced[i], head.shares[i]);
      } else {
        reduced[i] += head.shares[i];
      }
    }
    if (how == GroupReduce::mean) reduced[i] /= static_cast<double>(heads.size());
  }
  return reduced;
}

/// Attention over a part of the entries, ready to be merged with the other parts.
struct PartialState {
  Vector output;
  double lse = 0;  // means nothing while the output is empty
};

/// Exact attention over two disjoint sets of entries from attention over each.
inline PartialState merge_states(const PartialState& a, const PartialState& b) {
  if (a.output.empty()) return b;
  if (b.output.empty()) return a;
  const double top = std::max(a.lse, b.lse);
  const double mass_a = std::exp(a.lse - top), mass_b = std::exp(b.lse - top);
  PartialState merged{a.output, top + std::log(mass_a + mass_b)};
  for (std::size_t x = 0; x < merged.output.size(); ++x)
    merged.output[x] = (mass_a * a.output[x] + mass_b * b.output[x]) / (mass_a + mass_b);
  return merged;
}

/// The output once an entry with share `share` and value `value` has left.
inline Vector output_without(const Vector& output, double share, const Vector& value) {
  Vector rest(output.size());
  for (std::size_t x = 0; x < rest.size(); ++x)
    rest[x] = (output[x] - share * value[x]) / (1 - share);
  return rest;
}

}  // namespace reference
