// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "../support/compare.hpp"
#include "../support/golden.hpp"
#include "keepkv.hpp"

using reference::KeyRule;
using reference::Merged;
using reference::MergeSide;
using reference::Vector;
using support::close;
using support::close_all;
using support::GoldenCase;
using support::Integer;

namespace {

/// One query head: the predicted mass is votes times the predicted score.
MergeSide side(Vector key, Vector value, double votes, double log_score) {
  return {std::move(key), std::move(value), votes, log_score, std::log(votes) + log_score};
}

void check_moving_average(const GoldenCase& golden) {
  const support::Tolerance tolerance = golden.tolerance();
  const double decay = golden.setting<double>("decay");
  const auto prompt = golden.setting<Integer>("prompt_length");
  const auto& logits = golden.floats("logits");
  Vector log_average(static_cast<std::size_t>(logits.dim(1)), 0);
  std::vector<Integer> queries(log_average.size(), 0);
  const auto observe = [&](Integer query) {
    for (Integer entry = 0; entry <= query; ++entry) {
      const auto i = static_cast<std::size_t>(entry);
      log_average[i] =
          reference::next_log_average(log_average[i], queries[i], logits(query, entry), decay);
      queries[i] += 1;
    }
  };
  const auto check = [&](Integer row, Integer entries) {
    for (Integer entry = 0; entry < entries; ++entry) {
      const auto i = static_cast<std::size_t>(entry);
      CHECK(close(log_average[i] - reference::log_bias(queries[i], decay),
                  golden.floats("log_predicted")(row, entry), tolerance.relative,
                  tolerance.absolute));
    }
  };
  for (Integer q = prompt - golden.setting<Integer>("window"); q < prompt; ++q) observe(q);
  check(0, prompt);
  for (Integer step = 0; step < golden.setting<Integer>("decode_steps"); ++step) {
    observe(prompt + step);
    check(step + 1, prompt + step + 1);
  }
}

void check_merges(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto& votes = golden.floats("votes");
  const auto& log_scores = golden.floats("log_scores");
  for (Integer m = 0; m < votes.dim(0); ++m) {
    INFO("merge " << m);
    const auto entry = [&](Integer column) {
      return side(golden.floats("keys").vector<double>(m, column),
                  golden.floats("values").vector<double>(m, column), votes(m, column),
                  log_scores(m, column));
    };
    MergeSide carrier = entry(0);
    const Integer victims = golden.integers("merge_count")(m);
    REQUIRE(victims >= 1);
    for (Integer v = 1; v <= victims; ++v) {
      const Merged merged = reference::zip_merge(entry(v), carrier, KeyRule::mean, {}, 1);
      carrier = side(merged.key, merged.value, merged.votes, merged.target_logit);
    }
    CHECK(close(carrier.votes, golden.floats("merged_votes")(m), relative, absolute));
    CHECK(close_all(carrier.value, golden.floats("merged_value").vector(m), relative, absolute));
    CHECK(close_all(carrier.key, golden.floats("mean_key").vector(m), relative, absolute));
  }
}

void check_attention(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto& queries = golden.floats("attend_queries");
  const auto& votes = golden.floats("attend_votes");
  const double scale = 1 / std::sqrt(golden.setting<double>("head_dim"));
  for (Integer s = 0; s < queries.dim(0); ++s) {
    for (Integer h = 0; h < queries.dim(1); ++h) {
      std::vector<reference::Entry> entries;
      for (Integer i = 0; i < votes.dim(2); ++i) {
        if (votes(s, h, i) == 0) continue;  // padding
        reference::Entry entry;
        entry.key = golden.floats("attend_keys").vector<double>(s, h, i);
        entry.value = golden.floats("attend_values").vector<double>(s, h, i);
        entry.weight = votes(s, h, i);
        entries.push_back(entry);
      }
      const auto got = reference::attend(queries.vector<double>(s, h), entries, entries.size(),
                                         golden.setting<double>("alpha"), scale);
      CHECK(close_all(got.output, golden.floats("attend_output").vector(s, h), relative, absolute));
    }
  }
}

/// Merges a golden chain under one key rule; output and lse must stay what they were.
void check_chain(const GoldenCase& golden, Integer chain, KeyRule rule, const char* keys) {
  const auto [relative, absolute] = golden.tolerance();
  const double scale = golden.setting<double>("scale");
  const Vector query = golden.floats("q").vector<double>(chain);
  std::vector<reference::Entry> entries(
      static_cast<std::size_t>(golden.setting<Integer>("entries")));
  for (Integer i = 0; i < std::ssize(entries); ++i) {
    auto& entry = entries[static_cast<std::size_t>(i)];
    entry.key = golden.floats("k").vector<double>(chain, i);
    entry.value = golden.floats("v").vector<double>(chain, i);
    entry.weight = golden.floats("votes")(chain, i);
    entry.position = i;
  }
  const auto with_current_score = [&](const reference::Entry& entry) {
    return side(entry.key, entry.value, entry.weight, scale * reference::dot(query, entry.key));
  };
  const auto find = [&](Integer row) {
    std::size_t at = 0;
    while (entries.at(at).position != row) ++at;
    return at;
  };
  for (Integer m = 0; m < golden.setting<Integer>("merges"); ++m) {
    const std::size_t e = find(golden.integers("pairs")(chain, m, 0));
    const std::size_t c = find(golden.integers("pairs")(chain, m, 1));
    const Merged merged = reference::zip_merge(with_current_score(entries[e]),
                                               with_current_score(entries[c]), rule, query, scale);
    entries[c].key = merged.key;
    entries[c].value = merged.value;
    entries[c].weight = merged.votes;
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(e));
    const auto now = reference::attend(query, entries, entries.size(), 1, scale);
    CHECK(close_all(now.output, golden.floats("output").vector(chain), relative, absolute));
    CHECK(close(now.lse, golden.floats("lse")(chain), relative, absolute));
  }
  for (Integer i = 0; i < golden.setting<Integer>("entries"); ++i) {
    const double votes = golden.floats("final_votes")(chain, i);
    if (votes == 0) continue;  // gone
    const auto& entry = entries[find(i)];
    CHECK(close(entry.weight, votes, relative, absolute));
    CHECK(close_all(entry.key, golden.floats(keys).vector(chain, i), relative, absolute));
    CHECK(
        close_all(entry.value, golden.floats("final_values").vector(chain, i), relative, absolute));
  }
}

}  // namespace

TEST_CASE("reference KeepKV prediction agrees with the golden moving averages",
          "[reference][golden]") {
  for (const std::string& name : support::golden_cases("keepkv_ema")) {
    INFO(name);
    check_moving_average(GoldenCase(name));
  }
}

TEST_CASE("reference KeepKV merges and attends like the golden cases", "[reference][golden]") {
  for (const std::string& name : support::golden_cases("keepkv_merge")) {
    INFO(name);
    check_merges(GoldenCase(name));
    check_attention(GoldenCase(name));
  }
}

TEST_CASE("reference ZIP merge agrees with the golden cases", "[reference][golden]") {
  for (const std::string& name : support::golden_cases("zip_merge")) {
    INFO(name);
    const GoldenCase golden(name);
    const auto [relative, absolute] = golden.tolerance();
    for (Integer t = 0; t < golden.setting<Integer>("trials"); ++t) {
      const auto entry = [&](Integer which) {
        return side(golden.floats("k").vector<double>(t, which),
                    golden.floats("v").vector<double>(t, which), golden.floats("votes")(t, which),
                    golden.floats("log_scores")(t, which));
      };
      const std::pair<KeyRule, const char*> rules[] = {
          {KeyRule::scale, "merged_key_scale"}, {KeyRule::along_query, "merged_key_along_query"}};
      for (const auto& [rule, keys] : rules) {
        const Merged got =
            reference::zip_merge(entry(0), entry(1), rule, golden.floats("q").vector<double>(t),
                                 golden.setting<double>("scale"));
        CHECK(close(got.share_e, golden.floats("shares")(t, 0), relative, absolute));
        CHECK(close(got.share_c, golden.floats("shares")(t, 1), relative, absolute));
        CHECK(close(got.target_logit, golden.floats("target_logit")(t), relative, absolute));
        CHECK(close(got.kl, golden.floats("kl")(t), relative, absolute));
        CHECK(close_all(got.value, golden.floats("merged_value").vector(t), relative, absolute));
        CHECK(close_all(got.key, golden.floats(keys).vector(t), relative, absolute));
        CHECK(close(got.votes, golden.floats("merged_votes")(t), relative, absolute));
      }
    }
  }
}

TEST_CASE("reference ZIP chains leave the golden output unchanged", "[reference][golden]") {
  const GoldenCase golden("zip_chain_d16");
  for (Integer chain = 0; chain < golden.setting<Integer>("chains"); ++chain) {
    check_chain(golden, chain, KeyRule::scale, "final_keys_scale");
    check_chain(golden, chain, KeyRule::along_query, "final_keys_along_query");
  }
}
