// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "conformance.hpp"
#include "support/stored.hpp"

// What is in the entries, and what attention makes of them.

namespace {

using namespace conformance;

/// Token `position` of head `h` as the storage holds it.
Entry as_it_came(const Tokens& tokens, Storage storage, Index position, Index h) {
  Entry entry;
  entry.position = position;
  for (Index j = 0; j < tokens.dim; ++j) {
    const auto at = static_cast<std::size_t>((position * tokens.kv_heads + h) * tokens.dim + j);
    entry.key.push_back(tokens.k[at]);
    entry.value.push_back(tokens.v[at]);
  }
  if (storage == Storage::half_and_bfloat) {
    support::round_as_stored<tersekv::Half>(entry.key, tokens.dim);
    support::round_as_stored<tersekv::BFloat16>(entry.value, tokens.dim);
  } else if (storage == Storage::int8) {
    support::round_as_stored<tersekv::Int8>(entry.key, tokens.dim);
    support::round_as_stored<tersekv::Int8>(entry.value, tokens.dim);
  }
  return entry;
}

void check_protected(const PolicyCase& policy, Storage storage, AnyCache& cache,
                     const Tokens& tokens, Index seen) {
  for (Index h = 0; h < tokens.kv_heads; ++h) {
    const std::vector<Entry> entries = cache.entries(0, h);
    for (Index p = 0; p < seen; ++p) {
      const Intact intact = policy.intact(p, seen, policy.budget);
      if (intact == Intact::nothing) continue;
      CAPTURE(seen, h, p);
      const auto found = std::find_if(entries.begin(), entries.end(),
                                      [&](const Entry& e) { return e.position == p; });
      REQUIRE(found != entries.end());
      const Entry want = as_it_came(tokens, storage, p, h);
      CHECK(same_bits("key", found->key, want.key));
      CHECK(same_bits(found->weight, 1, "weight"));
      if (intact == Intact::entry) CHECK(same_bits("value", found->value, want.value));
    }
  }
}

TEST_CASE("conformance: protected entries stay as they came, bit for bit") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(21);
      const CacheConfig config = small_config(policy);
      const auto cache = policy.make(config, {.storage = storage});
      Tokens tokens(random, config, total(kTalk));
      feed(*cache, tokens, kTalk, 0,
           [&](Index seen, Index) { check_protected(policy, storage, *cache, tokens, seen); });
    }
  }
}

TEST_CASE("conformance: every token is an entry, evicted or merged, and weights add up") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(22);
      const CacheConfig config = small_config(policy);
      const auto cache = policy.make(config, {.storage = storage});
      Tokens tokens(random, config, total(kTalk));
      Index kept = 0, evictions = 0, merges = 0;
      feed(*cache, tokens, kTalk, 0, [&](Index seen, Index) {
        kept = evictions = merges = 0;
        for (Index h = 0; h < config.num_kv_heads; ++h) {
          const std::vector<Entry> entries = cache->entries(0, h);
          REQUIRE(std::ssize(entries) == cache->length(0, h));
          double weights = 0;
          Index before = -1;
          for (const Entry& entry : entries) {
            CHECK(entry.position > before);
            before = entry.position;
            CHECK(entry.weight >= 1);
            weights += static_cast<double>(entry.weight);
          }
          CHECK(before < seen);
          const double sum =
              static_cast<double>(policy.weights_sum_to_tokens ? seen : entries.size());
          CHECK(weights == sum);
          const tersekv::Counts counts = cache->counts(0, h);
          CHECK(cache->length(0, h) + counts.evictions + counts.merges == seen);
          kept += cache->length(0, h);
          evictions += counts.evictions;
          merges += counts.merges;
        }
        CHECK(cache->total_counts().evictions == evictions);
        CHECK(cache->total_counts().merges == merges);
        CHECK(cache->keep_ratio() ==
              static_cast<double>(kept) / static_cast<double>(config.num_kv_heads * seen));
      });
      if (policy.has_budget) CHECK(evictions + merges > 0);
    }
  }
}

/// Outputs and contents without NaN or infinity.
bool all_finite(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return support::is_finite(x); });
}

/// What came out of sequence 0, and what it holds.
void check_finite(const Tokens& tokens, const AnyCache& cache) {
  CHECK(all_finite(tokens.out));
  CHECK(all_finite(tokens.lse));
  for (Index h = 0; h < cache.config().num_kv_heads; ++h) {
    for (const Entry& entry : cache.entries(0, h)) {
      CHECK(all_finite(entry.key));
      CHECK(all_finite(entry.value));
      CHECK(all_finite(std::vector<float>{entry.weight, entry.score}));
    }
  }
}

TEST_CASE("conformance: ordinary input leads to finite numbers in every storage") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      CAPTURE(static_cast<int>(storage));
      support::Random random(23);
      const CacheConfig config = small_config(policy);
      const auto cache = policy.make(config, {.storage = storage});
      Tokens tokens(random, config, total(kTalk));
      feed(*cache, tokens);
      check_finite(tokens, *cache);
    }
  }
}

TEST_CASE("conformance: extreme input leads to finite numbers and a head within its budget") {
  FOR_EACH_POLICY(policy) {
    // Sizes of queries and keys, as a power of ten; beyond 1e15 input is refused.
    for (const auto& [q_size, k_size] : {std::pair<int, int>{-30, -30},
                                         {-20, -20},
                                         {-19, 3},
                                         {-6, 0},
                                         {0, -20},
                                         {-38, 14},
                                         {2, 2},
                                         {4, 3},
                                         {14, 14},
                                         {14, -20}}) {
      for (const Storage storage : kStorages) {
        if (storage == Storage::half_and_bfloat && k_size > 3) continue;  // half ends at 65504
        CAPTURE(q_size, k_size, static_cast<int>(storage));
        support::Random random(25);
        const CacheConfig config = small_config(policy);
        const auto cache = policy.make(config, {.storage = storage});
        Tokens tokens(random, config, total(kTalk));
        for (float& x : tokens.q) x *= std::pow(10.0f, static_cast<float>(q_size));
        for (float& x : tokens.k) x *= std::pow(10.0f, static_cast<float>(k_size));
        feed(*cache, tokens);
        check_finite(tokens, *cache);
        for (Index h = 0; h < config.num_kv_heads && policy.is_bounded(); ++h) {
          CHECK(cache->length(0, h) <= policy.budget + policy.beyond);
        }
      }
    }
  }
}

TEST_CASE("conformance: whatever scale of the logits is accepted leads to finite outputs") {
  FOR_EACH_POLICY(policy) {
    for (const float scale : {1e-38f, 1.0f, 1e4f, 1e10f, 1e30f, 3e38f}) {
      CAPTURE(scale);
      support::Random random(26);
      CacheConfig config = small_config(policy);
      config.scale = scale;
      std::unique_ptr<AnyCache> cache;
      try {
        cache = policy.make(config, {});
      } catch (const std::invalid_argument&) {
        continue;
      }
      Tokens tokens(random, config, 50);
      for (float& x : tokens.q) x *= 1e14f;
      for (float& x : tokens.k) x *= 1e14f;
      feed(*cache, tokens, {30, 1, 1, 18});
      CHECK(all_finite(tokens.out));
      CHECK(all_finite(tokens.lse));
    }
  }
}

/// Compensated softmax by the definition; `slack` is what rounding may do to the logits, that of
/// numbers as large as `query_step` included.
struct Attended {
  std::vector<double> out;
  double lse = 0, slack = 0;
};
Attended attend_by_definition(const std::vector<Entry>& entries, const float* query, float scale,
                              float alpha, double query_step) {
  std::vector<double> logits;
  Attended result;
  for (const Entry& entry : entries) {
    double logit = 0, size = 0, steps = 0;
    for (std::size_t j = 0; j < entry.key.size(); ++j) {
      const double product = static_cast<double>(scale) * static_cast<double>(query[j]) *
                             static_cast<double>(entry.key[j]);
      logit += product;
      size += std::abs(product);
      steps += query_step * static_cast<double>(scale * std::abs(entry.key[j]));
    }
    logits.push_back(logit + static_cast<double>(alpha) * std::log(entry.weight));
    result.slack = std::max(result.slack, 2e-6 * (1 + size) + steps);
  }
  const double highest = *std::max_element(logits.begin(), logits.end());
  double mass = 0;
  for (const double l : logits) mass += std::exp(l - highest);
  result.lse = highest + std::log(mass);
  result.out.resize(entries.front().value.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (std::size_t j = 0; j < result.out.size(); ++j) {
      result.out[j] += std::exp(logits[i] - result.lse) * static_cast<double>(entries[i].value[j]);
    }
  }
  return result;
}

TEST_CASE("conformance: attention is the softmax over the entries, plain where alpha is 0") {
  FOR_EACH_POLICY(policy) {
    for (const Storage storage : kStorages) {
      support::Random random(24);
      const CacheConfig config = small_config(policy);
      const auto cache = policy.make(config, {.storage = storage});
      Tokens tokens(random, config, total(kTalk) + 1);
      feed(*cache, tokens);
      const Chunk<float> last = tokens.chunk(total(kTalk), 1);
      cache->append(0, last);
      cache->attend(0, last.q, last.out, {.lse = last.lse});
      const float scale = 1 / std::sqrt(static_cast<float>(config.head_dim));
      for (Index head = 0; head < config.num_q_heads; ++head) {
        // Against bytes a query counts in steps of 2^-15 of its largest, and shares of 2^-16.
        const float* query = &last.q(0, head, 0);
        double largest = 0;
        for (Index j = 0; j < tokens.dim; ++j)
          largest = std::max<double>(largest, std::abs(query[j]));
        const bool bytes = storage == Storage::int8;
        const Attended want = attend_by_definition(cache->entries(0, head / 3), query, scale,
                                                   policy.alpha, bytes ? largest * 0x1p-16 : 0);
        CHECK(support::close(last.lse[head], want.lse, 1e-6, want.slack));
        const std::vector<float> out(&last.out(0, head, 0), &last.out(0, head, 0) + tokens.dim);
        CHECK(support::close_all(out, want.out, 1e-5, 4 * want.slack + (bytes ? 1e-4 : 0)));
      }
    }
  }
}

}  // namespace
