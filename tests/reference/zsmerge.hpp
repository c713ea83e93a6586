// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <stdexcept>
#include <vector>

#include "head.hpp"

namespace reference {

/// Proximity, context and residual slots (METHODS.md, ZSMerge).
class ZSMerge : public Policy {
 public:
  struct Options {
    Integer budget = 0;
    Integer proximity = kAuto;  // B_p, floor(B/2)
    Integer residual = kAuto;   // B_r, 2 % of the rest, at least 1
    double decay = 0.98;
    double alpha = 1;
    Integer window = 8;
  };

  explicit ZSMerge(const Options& options) : options_(options) {
    if (options.budget < 1) throw std::invalid_argument("budget must be positive");
    if (options_.proximity == kAuto) options_.proximity = options.budget / 2;
    const Integer rest = options.budget - options_.proximity;
    if (options_.residual == kAuto) options_.residual = std::max<Integer>(1, (2 * rest + 50) / 100);
    if (rest < 0 || options_.residual > rest) throw std::invalid_argument("parts over budget");
  }

  double alpha() const override { return options_.alpha; }

  void observe(Cache& cache, const std::vector<Row>& rows) override {
    const Integer skipped = std::ssize(rows) - options_.window;
    for (Integer r = std::max<Integer>(0, skipped); r < std::ssize(rows); ++r) {
      const Vector& attention = rows[static_cast<std::size_t>(r)].group;
      for (std::size_t i = 0; i < attention.size(); ++i)
        cache.entries[i].score = options_.decay * cache.entries[i].score + attention[i];
    }
  }

  void compress(Cache& cache, Integer) override {
    Integer raw = 0;
    for (const Entry& entry : cache.entries) raw += entry.residual ? 0 : 1;
    const Integer excess = raw - (options_.budget - options_.residual);
    if (excess <= 0) return;
    Vector scores;
    std::vector<Integer> candidates;
    for (const Entry& entry : cache.entries) {
      if (entry.residual || cache.among_latest(entry, options_.proximity)) continue;
      scores.push_back(entry.score);
      candidates.push_back(entry.position);
    }
    for (std::size_t chosen : choose_lowest(scores, excess, cache.margin))
      fold(cache, candidates[chosen]);
  }

 private:
  void fold(Cache& cache, Integer position) const {
    std::size_t victim = 0;
    while (cache.entries[victim].position != position) ++victim;
    std::vector<std::size_t> slots;
    for (std::size_t i = 0; i < cache.entries.size(); ++i)
      if (cache.entries[i].residual) slots.push_back(i);
    if (std::ssize(slots) < options_.residual) {
      cache.entries[victim].residual = true;
      cache.events.push_back({cache.tokens_seen, position, kNoTarget, true});
      return;
    }
    if (slots.empty()) {
      cache.evict(victim);
      return;
    }
    const Entry& leaving = cache.entries[victim];
    Vector similarity;
    std::vector<bool> blended;
    double largest = 0;
    for (std::size_t slot : slots) {
      const Vector& key = cache.entries[slot].key;
      similarity.push_back(dot(key, leaving.key));
      blended.push_back(cache.entries[slot].blended);
      largest = std::max(largest, std::sqrt(dot(key, key) * dot(leaving.key, leaving.key)));
    }
    Entry& slot = cache.entries[slots[choose_highest(similarity, cache.margin, largest, blended)]];
    slot.blended = slot.blended || slot.key != leaving.key;
    for (std::size_t x = 0; x < slot.key.size(); ++x)
      slot.key[x] = (slot.weight * slot.key[x] + leaving.key[x]) / (slot.weight + 1);
    for (std::size_t x = 0; x < slot.value.size(); ++x)
      slot.value[x] = (slot.weight * slot.value[x] + leaving.value[x]) / (slot.weight + 1);
    cache.stored(slot.key);
    cache.stored(slot.value);
    slot.weight += 1;
    cache.events.push_back({cache.tokens_seen, position, slot.position});
    cache.entries.erase(cache.entries.begin() + static_cast<std::ptrdiff_t>(victim));
  }

  Options options_;
};

}  // namespace reference
