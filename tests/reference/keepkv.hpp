// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "head.hpp"
#include "zip.hpp"

namespace reference {

/// Moving average of exp(logit), kept as a logarithm: the next value after `log_average` (unused
/// while `queries` is 0) has seen `logit`.
inline double next_log_average(double log_average, Integer queries, double logit, double decay) {
  const double fresh = std::log(1 - decay) + logit;
  if (queries == 0 || decay == 0) return fresh;
  return log_sum_exp({std::log(decay) + log_average, fresh});
}

/// ln of what is missing from an average over `queries` values that started from nothing.
inline double log_bias(Integer queries, double decay) {
  return std::log(1 - std::pow(decay, static_cast<double>(queries)));
}

/// A zero key is similar to nothing.
inline double cosine(const Vector& a, const Vector& b) {
  const double norms = dot(a, a) * dot(b, b);
  return norms == 0 ? 0 : dot(a, b) / std::sqrt(norms);
}

enum class KeepKVSelector { victim, pair };

/// Votes, predicted scores and ZIP merges (METHODS.md, KeepKV).
class KeepKV : public Policy {
 public:
  struct Options {
    Integer budget = 0;
    Integer recent = kAuto;  // R, floor(B/2)
    Integer sinks = 4;
    double decay = 0.98;
    Integer window = 32;
    KeepKVSelector selector = KeepKVSelector::victim;
    KeyRule key_rule = KeyRule::mean;
  };

  explicit KeepKV(const Options& options) : options_(options) {
    if (options_.recent == kAuto) options_.recent = options.budget / 2;
    // A merge needs two entries that are neither sinks nor recent, and leaves one.
    if (options_.recent < 0 || options_.sinks < 0 ||
        options_.budget < options_.recent + options_.sinks + 1)
      throw std::invalid_argument("budget below sinks + recent + 1");
  }

  double alpha() const override { return 1; }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    for (Integer r = std::max<Integer>(0, std::ssize(rows) - options_.window); r < std::ssize(rows);
         ++r) {
      const Row& row = rows[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < row.group.size(); ++i) {
        Entry& entry = cache.entries[i];
        entry.log_average.resize(row.heads.size());
        for (std::size_t g = 0; g < row.heads.size(); ++g)
          entry.log_average[g] = next_log_average(entry.log_average[g], entry.queries,
                                                  row.heads[g].logits[i], options_.decay);
        entry.queries += 1;
      }
    }
    latest_lse_.clear();
    mean_query_.assign(rows.back().queries[0].size(), 0);
    for (const Attention& head : rows.back().heads) latest_lse_.push_back(head.lse);
    for (const Vector& query : rows.back().queries)
      for (std::size_t x = 0; x < query.size(); ++x)
        mean_query_[x] += query[x] / static_cast<double>(rows.back().queries.size());
  }

  void compress(Cache& cache, Integer) override {
    while (cache.size() > options_.budget) {
      std::vector<std::size_t> candidates;
      for (std::size_t i = 0; i < cache.entries.size(); ++i)
        if (cache.entries[i].position >= options_.sinks &&
            !cache.among_latest(cache.entries[i], options_.recent))
          candidates.push_back(i);
      if (options_.selector == KeepKVSelector::victim) {
        merge_lowest(cache, candidates);
      } else {
        merge_most_similar(cache, candidates);
      }
    }
  }

  /// ln S^ of one query head.
  double log_predicted(const Entry& entry, std::size_t g) const {
    return entry.log_average[g] - log_bias(entry.queries, options_.decay);
  }

  /// ln m = ln p + ln sum_g S^_g / Z_g, with Z of the latest query.
  double log_mass(const Entry& entry) const {
    Vector terms;
    for (std::size_t g = 0; g < latest_lse_.size(); ++g)
      terms.push_back(log_predicted(entry, g) - latest_lse_[g]);
    return std::log(entry.weight) + log_sum_exp(terms);
  }

 private:
  void merge_lowest(Cache& cache, const std::vector<std::size_t>& candidates) {
    Vector masses;
    for (std::size_t i : candidates) masses.push_back(log_mass(cache.entries[i]));
    const std::size_t victim = candidates[choose_one_lowest(masses, cache.margin, 1)];
    Vector similarity;
    std::vector<std::size_t> carriers;
    for (std::size_t i : candidates) {
      if (i == victim) continue;
      carriers.push_back(i);
      similarity.push_back(cosine(cache.entries[victim].key, cache.entries[i].key));
    }
    merge(cache, victim, carriers[choose_highest(similarity, cache.margin, 1)]);
  }

  void merge_most_similar(Cache& cache, const std::vector<std::size_t>& candidates) {
    Vector similarity;
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t a = 0; a < candidates.size(); ++a) {
      for (std::size_t b = a + 1; b < candidates.size(); ++b) {
        pairs.emplace_back(candidates[a], candidates[b]);
        similarity.push_back(
            cosine(cache.entries[candidates[a]].key, cache.entries[candidates[b]].key));
      }
    }
    const auto [older, later] = pairs[choose_highest(similarity, cache.margin, 1)];
    merge(cache, older, later);
  }

  MergeSide side(const Entry& entry) const {
    double mean_log_score = 0;
    for (std::size_t g = 0; g < latest_lse_.size(); ++g)
      mean_log_score += log_predicted(entry, g) / static_cast<double>(latest_lse_.size());
    return {entry.key, entry.value, entry.weight, mean_log_score, log_mass(entry)};
  }

  void merge(Cache& cache, std::size_t e, std::size_t c) {
    const Entry& leaving = cache.entries[e];
    Entry& carrier = cache.entries[c];
    const Merged merged =
        zip_merge(side(leaving), side(carrier), options_.key_rule, mean_query_, cache.scale);
    for (std::size_t g = 0; g < latest_lse_.size(); ++g) {
      const double both = log_sum_exp({std::log(leaving.weight) + log_predicted(leaving, g),
                                       std::log(carrier.weight) + log_predicted(carrier, g)});
      carrier.log_average[g] =
          both - std::log(merged.votes) + log_bias(carrier.queries, options_.decay);
    }
    cache.events.push_back({cache.tokens_seen, leaving.position, carrier.position});
    carrier.key = merged.key;
    carrier.value = merged.value;
    cache.stored(carrier.key);
    cache.stored(carrier.value);
    carrier.weight = merged.votes;
    carrier.position = std::max(leaving.position, carrier.position);
    cache.entries.erase(cache.entries.begin() + static_cast<std::ptrdiff_t>(e));
    std::sort(cache.entries.begin(), cache.entries.end(),
              [](const Entry& a, const Entry& b) { return a.position < b.position; });
  }

  Options options_;
  Vector latest_lse_;
  Vector mean_query_;
};

}  // namespace reference
