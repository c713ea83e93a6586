// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "../support/compare.hpp"
#include "../support/golden.hpp"
#include "h2o.hpp"
#include "random_tokens.hpp"
#include "snapkv.hpp"
#include "streaming_llm.hpp"
#include "tova.hpp"
#include "weightedkv.hpp"

using reference::Head;
using reference::Token;
using reference::Vector;
using support::GoldenCase;
using support::Integer;
using support::same_indices;

namespace {

/// The prompt of a scores case, whose tensors put the head before the token.
std::vector<Token> prompt_of(const GoldenCase& golden, Integer kv_head) {
  std::vector<Token> tokens;
  for (Integer t = 0; t < golden.setting<Integer>("length"); ++t) {
    Token token;
    for (Integer g = 0; g < golden.setting<Integer>("group_size"); ++g)
      token.queries.push_back(golden.floats("q").vector<double>(kv_head, g, t));
    token.key = golden.floats("k").vector<double>(kv_head, t);
    token.value = golden.floats("v").vector<double>(kv_head, t);
    tokens.push_back(token);
  }
  return tokens;
}

void check_attention(const GoldenCase& golden, const Head& head, Integer kv_head) {
  const auto [relative, absolute] = golden.tolerance();
  for (const auto& row : head.last_rows()) {
    for (std::size_t g = 0; g < row.heads.size(); ++g) {
      auto want = golden.floats("attention").vector(kv_head, static_cast<Integer>(g), row.position);
      want.resize(row.heads[g].shares.size());
      CHECK(support::close_all(row.heads[g].shares, want, relative, absolute));
    }
  }
}

void check_scores(const GoldenCase& golden, Integer kv_head) {
  const auto [relative, absolute] = golden.tolerance();
  const auto tokens = prompt_of(golden, kv_head);
  const auto group = golden.setting<double>("group_size");
  const auto kept = golden.setting<Integer>("n_kept");

  auto streaming = reference::make_head<reference::StreamingLLM>(
      {.budget = kept, .sinks = golden.setting<Integer>("streaming/sinks")});
  streaming.extend(tokens);
  check_attention(golden, streaming, kv_head);
  CHECK(same_indices(streaming.positions(), golden.integers("streaming_kept").vector(kv_head)));

  const auto window = golden.setting<Integer>("snapkv/window");
  const auto kernel = golden.setting<Integer>("snapkv/kernel");
  auto snapkv =
      reference::make_head<reference::SnapKV>({.budget = kept, .window = window, .kernel = kernel});
  snapkv.extend(tokens, reference::kNever);
  Vector scores;
  for (const auto& entry : snapkv.entries())
    if (entry.position < snapkv.tokens_seen() - window) scores.push_back(entry.score);
  scores = reference::average_pool(scores, kernel);
  for (double& score : scores) score /= static_cast<double>(window) * group;
  CHECK(support::close_all(scores, golden.floats("snapkv_scores").vector(kv_head), relative,
                           absolute));
  snapkv.compress();
  CHECK(same_indices(snapkv.positions(), golden.integers("snapkv_kept").vector(kv_head)));

  // Average attention is WeightedKV's score.
  auto average = reference::make_head<reference::WeightedKV>({.budget = kept});
  average.extend(tokens, reference::kNever);
  Vector averages;
  for (const auto& entry : average.entries())
    averages.push_back(reference::WeightedKV::average(entry) / group);
  CHECK(support::close_all(averages, golden.floats("average_attention_scores").vector(kv_head),
                           relative, absolute));
  reference::Margin margin;
  std::vector<Integer> survivors = average.positions();
  for (std::size_t victim : reference::choose_lowest(averages, std::ssize(averages) - kept, margin))
    std::erase(survivors, static_cast<Integer>(victim));
  CHECK(same_indices(survivors, golden.integers("average_attention_kept").vector(kv_head)));

  if (!golden.has("tova_scores")) return;
  auto tova = reference::make_head<reference::TOVA>({.budget = kept});
  tova.extend(tokens, reference::kNever);
  Vector attention;
  for (const auto& entry : tova.entries()) attention.push_back(entry.score / group);
  attention.pop_back();
  CHECK(support::close_all(attention, golden.floats("tova_scores").vector(kv_head), relative,
                           absolute));
  tova.compress();
  CHECK(same_indices(tova.positions(), golden.integers("tova_kept").vector(kv_head)));
}

/// Tokens whose zero queries attend to everything alike.
std::vector<Token> indifferent_tokens(Integer count) {
  return std::vector<Token>(static_cast<std::size_t>(count), Token{{{0.0}}, {1.0}, {1.0}});
}

}  // namespace

TEST_CASE("reference baselines agree with the golden scores and kept sets", "[reference][golden]") {
  bool tova = false;
  for (const std::string& name : support::golden_cases("scores_")) {
    INFO(name);
    const GoldenCase golden(name);
    for (Integer h = 0; h < golden.setting<Integer>("num_kv_heads"); ++h) check_scores(golden, h);
    tova = tova || golden.has("tova_scores");
  }
  CHECK(tova);
}

TEST_CASE("reference StreamingLLM keeps sinks and the latest in chunks of any size",
          "[reference]") {
  for (Integer chunk : {1, 3, 10}) {
    auto head = reference::make_head<reference::StreamingLLM>({.budget = 6});
    for (Integer fed = 0; fed < 30; fed += chunk) head.extend(indifferent_tokens(chunk));
    CHECK(same_indices(head.positions(), std::vector{0, 1, 2, 3, 28, 29}));
    CHECK(head.largest_size() <= 6 + chunk);
  }
}

TEST_CASE("reference H2O by hand", "[reference]") {
  // Under uniform attention the oldest has accumulated most, so it alone survives the recent ones.
  for (Integer compress_every : {0, 1, 2}) {
    auto head = reference::make_head<reference::H2O>({.budget = 3});
    head.extend(indifferent_tokens(8), compress_every);
    CHECK(same_indices(head.positions(), std::vector{0, 6, 7}));
    CHECK(head.margin().smallest < 1);
  }
  auto head = reference::make_head<reference::H2O>({.budget = 3});
  head.extend(indifferent_tokens(3), 1);
  CHECK(support::close(head.entries()[1].score, 1.0 / 2 + 1.0 / 3, 1e-15, 0));
}

TEST_CASE("reference TOVA breaks ties by position and spares the newest", "[reference]") {
  for (Integer compress_every : {0, 1}) {
    auto head = reference::make_head<reference::TOVA>({.budget = 2});
    head.extend(indifferent_tokens(6), compress_every);
    CHECK(same_indices(head.positions(), std::vector{4, 5}));
    CHECK(head.margin().exact_ties > 0);
  }
}

TEST_CASE("reference SnapKV pools with zeros and evicts nothing while decoding", "[reference]") {
  CHECK(support::close_all(reference::average_pool({6, 0, 0, 3, 0}, 3), Vector{2, 2, 1, 1, 1},
                           1e-15, 0));
  support::Random random(3);
  auto head = reference::make_head<reference::SnapKV>({.budget = 10, .window = 4, .kernel = 3});
  head.extend(random_tokens(random, 25, 2, 4));
  CHECK(head.entries().size() == 10);
  for (int step = 0; step < 5; ++step) head.extend(random_tokens(random, 1, 2, 4));
  CHECK(head.entries().size() == 15);
  head.extend(random_tokens(random, 2, 2, 4));
  CHECK(head.entries().size() == 10);
  for (Integer latest = 0; latest < 4; ++latest)
    CHECK(head.positions()[static_cast<std::size_t>(6 + latest)] == 28 + latest);
}

TEST_CASE("reference SnapKV scores start afresh with every chunk", "[reference]") {
  support::Random random(4);
  auto head = reference::make_head<reference::SnapKV>({.budget = 10, .window = 4, .kernel = 3});
  for (Integer chunk : {9, 3, 12}) {
    head.extend(random_tokens(random, chunk, 2, 4), reference::kNever);
    const auto& rows = head.last_rows();
    for (std::size_t i = 0; i < head.entries().size(); ++i) {
      double expected = 0;  // from the last four queries of this chunk, or all of fewer
      for (std::size_t r = rows.size() - std::min<std::size_t>(4, rows.size()); r < rows.size();
           ++r)
        if (i < rows[r].group.size()) expected += rows[r].group[i];
      CHECK(support::close(head.entries()[i].score, expected, 1e-14, 0));
    }
  }
}
