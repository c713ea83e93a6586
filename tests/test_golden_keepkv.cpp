// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/compare.hpp"
#include "support/golden.hpp"
#include "zip_head.hpp"

using support::close;
using support::close_all;
using support::GoldenCase;
using support::ZipHead;
using tersekv::Index;
using tersekv::KeyRule;

namespace {

void check_moving_average(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto prompt = golden.setting<Index>("prompt_length");
  const auto& logits = golden.floats("logits");
  const auto policy = tersekv::make_keepkv(
      {.decay = golden.setting<float>("decay"), .window = golden.setting<Index>("window")});
  const tersekv::Shape shape{.group_size = 1, .head_dim = 2};
  support::BareHead<tersekv::KeepKV> bare(policy, shape, tersekv::kUnlimited, logits.dim(0), 16);
  tersekv::SerialTeam team;
  const std::vector<float> nothing(2, 0.0f);
  const auto observe = [&](Index query, bool first) {
    tersekv::Observation row;
    row.visible = query + 1;
    row.first = first;
    row.logits = logits.row(query);
    row.logit_stride = logits.dim(1);
    row.lse = nothing.data();
    row.query = nothing.data();
    policy.observe(team, bare.head(), row);
  };
  for (Index t = 0; t < prompt; ++t) bare.push(nothing.data(), nothing.data());
  const Index rows = policy.observed_rows(prompt);
  REQUIRE(rows == golden.setting<Index>("window"));
  for (Index query = prompt - rows; query < prompt; ++query) observe(query, query == prompt - rows);
  for (Index step = 0; step <= golden.setting<Index>("decode_steps"); ++step) {
    INFO("step " << step);
    if (step > 0) {
      bare.push(nothing.data(), nothing.data());
      observe(prompt + step - 1, true);
    }
    for (Index i = 0; i < prompt + step; ++i) {
      CHECK(close(policy.scorer().log_score(bare.head(), i, 0),
                  golden.floats("log_predicted")(step, i), relative, absolute));
    }
  }
}

void check_merges(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto dim = golden.setting<Index>("head_dim");
  const auto& votes = golden.floats("votes");
  const std::vector<float> no_query(static_cast<std::size_t>(dim), 0.0f);
  for (Index m = 0; m < votes.dim(0); ++m) {
    INFO("merge " << m);
    ZipHead head(KeyRule::mean, dim, 1 / std::sqrt(static_cast<float>(dim)));
    const Index victims = golden.integers("merge_count")(m);
    REQUIRE(victims >= 1);
    for (Index i = 0; i <= victims; ++i) {
      head.push(golden.floats("keys").row(m, i), golden.floats("values").row(m, i), votes(m, i));
    }
    head.predict(no_query.data(), golden.floats("log_scores").row(m));
    // Slot 0 is the carrier; slot 1 the next victim, and the last one takes its place.
    std::vector<Index> slots(static_cast<std::size_t>(victims) + 1);
    std::iota(slots.begin(), slots.end(), 0);
    for (Index victim = 1; victim <= victims; ++victim) {
      const auto at = std::find(slots.begin(), slots.end(), victim);
      head.merge(at - slots.begin(), 0);
      *at = slots.back();
      slots.pop_back();
    }
    CHECK(close(head.head().weight(0), golden.floats("merged_votes")(m), relative, absolute));
    CHECK(close_all(head.value(0), golden.floats("merged_value").vector(m), relative, absolute));
    CHECK(close_all(head.key(0), golden.floats("mean_key").vector(m), relative, absolute));
  }
}

void check_attention(const GoldenCase& golden) {
  const auto [relative, absolute] = golden.tolerance();
  const auto dim = golden.setting<Index>("head_dim");
  const auto& votes = golden.floats("attend_votes");
  for (Index s = 0; s < votes.dim(0); ++s) {
    for (Index h = 0; h < votes.dim(1); ++h) {
      ZipHead head(KeyRule::mean, dim, 1 / std::sqrt(static_cast<float>(dim)));
      for (Index i = 0; i < votes.dim(2); ++i) {
        if (votes(s, h, i) == 0) continue;  // padding
        head.push(golden.floats("attend_keys").row(s, h, i),
                  golden.floats("attend_values").row(s, h, i), votes(s, h, i));
      }
      CHECK(close_all(head.attend(golden.floats("attend_queries").row(s, h)),
                      golden.floats("attend_output").vector(s, h), relative, absolute));
    }
  }
}

void check_zip(const GoldenCase& golden, KeyRule rule, const char* keys) {
  INFO(keys);
  const auto [relative, absolute] = golden.tolerance();
  for (Index t = 0; t < golden.setting<Index>("trials"); ++t) {
    INFO("trial " << t);
    ZipHead head(rule, golden.setting<Index>("head_dim"), golden.setting<float>("scale"));
    for (Index i = 0; i < 2; ++i) {
      head.push(golden.floats("k").row(t, i), golden.floats("v").row(t, i),
                golden.floats("votes")(t, i));
    }
    head.predict(golden.floats("q").row(t), golden.floats("log_scores").row(t));
    head.merge(0, 1);  // the merged entry then lies in slot 0
    CHECK(close_all(head.value(0), golden.floats("merged_value").vector(t), relative, absolute));
    CHECK(close_all(head.key(0), golden.floats(keys).vector(t), relative, absolute));
    CHECK(close(head.head().weight(0), golden.floats("merged_votes")(t), relative, absolute));
    CHECK(close(head.predicted(0), golden.floats("target_logit")(t), relative, absolute));
    CHECK(head.head().position(0) == 1);
  }
}

void check_chain(const GoldenCase& golden, Index chain, KeyRule rule, const char* keys) {
  INFO("chain " << chain << ", " << keys);
  const auto [relative, absolute] = golden.tolerance();
  const auto entries = golden.setting<Index>("entries");
  const float* query = golden.floats("q").row(chain);
  ZipHead head(rule, golden.setting<Index>("head_dim"), golden.setting<float>("scale"));
  std::vector<Index> slots;  // the golden row that each slot holds
  for (Index i = 0; i < entries; ++i) {
    head.push(golden.floats("k").row(chain, i), golden.floats("v").row(chain, i),
              golden.floats("votes")(chain, i));
    slots.push_back(i);
  }
  head.predict(query);
  for (Index m = 0; m < golden.setting<Index>("merges"); ++m) {
    INFO("merge " << m);
    const auto e = std::find(slots.begin(), slots.end(), golden.integers("pairs")(chain, m, 0));
    const auto c = std::find(slots.begin(), slots.end(), golden.integers("pairs")(chain, m, 1));
    head.merge(e - slots.begin(), c - slots.begin());
    *e = slots.back();
    slots.pop_back();
    CHECK(close_all(head.attend(query), golden.floats("output").vector(chain), relative, absolute));
    CHECK(close(head.lse(), golden.floats("lse")(chain), relative, absolute));
  }
  for (Index slot = 0; slot < std::ssize(slots); ++slot) {
    const Index row = slots[static_cast<std::size_t>(slot)];
    CHECK(close(head.head().weight(slot), golden.floats("final_votes")(chain, row), relative,
                absolute));
    CHECK(close_all(head.value(slot), golden.floats("final_values").vector(chain, row), relative,
                    absolute));
    CHECK(close_all(head.key(slot), golden.floats(keys).vector(chain, row), relative, absolute));
  }
}

}  // namespace

TEST_CASE("KeepKV's predicted scores agree with the golden moving averages", "[golden]") {
  for (const std::string& name : support::golden_cases("keepkv_ema")) {
    INFO(name);
    check_moving_average(GoldenCase(name));
  }
}

TEST_CASE("KeepKV merges and attends like the golden cases", "[golden]") {
  for (const std::string& name : support::golden_cases("keepkv_merge")) {
    INFO(name);
    check_merges(GoldenCase(name));
    check_attention(GoldenCase(name));
  }
}

TEST_CASE("ZIP merges agree with the golden cases", "[golden]") {
  for (const std::string& name : support::golden_cases("zip_merge")) {
    INFO(name);
    const GoldenCase golden(name);
    check_zip(golden, KeyRule::scale, "merged_key_scale");
    check_zip(golden, KeyRule::along_query, "merged_key_along_query");
  }
}

TEST_CASE("ZIP chains leave the golden output unchanged", "[golden]") {
  const GoldenCase golden("zip_chain_d16");
  for (Index chain = 0; chain < golden.setting<Index>("chains"); ++chain) {
    check_chain(golden, chain, KeyRule::scale, "final_keys_scale");
    check_chain(golden, chain, KeyRule::along_query, "final_keys_along_query");
  }
}
