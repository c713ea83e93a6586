// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "../support/compare.hpp"
#include "../support/golden.hpp"
#include "../support/random.hpp"
#include "choice.hpp"
#include "golden_replay.hpp"
#include "zsmerge.hpp"

// The helpers that judge are worth as much as what they reject.

using namespace support;

TEST_CASE("close accepts what is within tolerance and rejects the rest", "[support]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(close(1.000009, 1, 1e-5, 0));
  CHECK(close(1e-7, 0, 0, 1e-6));
  CHECK(close(-100.0009, -100, 1e-5, 0));
  CHECK_FALSE(close(1.00002, 1, 1e-5, 0));
  CHECK_FALSE(close(2e-6, 0, 1e-5, 1e-6));
  CHECK_FALSE(close(1, -1, 1e-5, 1e-6));
  CHECK_FALSE(close(nan, 0, 1, 1));
  CHECK_FALSE(close(0, nan, 1, 1));
  CHECK_FALSE(close(nan, nan, 1, 1));
  CHECK_FALSE(close(infinity, infinity, 1, 1));
  CHECK_FALSE(close(infinity, 1, 1, 1));
  CHECK_FALSE(close(1, -infinity, 1, 1));
  CHECK(close(1.5, 1, 1e-5, 0).reason.find("got 1.5, want 1") != std::string::npos);
}

TEST_CASE("close_all rejects one perturbed element and any other length", "[support]") {
  const std::vector<double> want{0.1, -0.2, 0.3};
  CHECK(close_all(want, want, 0, 0));
  for (std::size_t i = 0; i < want.size(); ++i) {
    auto perturbed = want;
    perturbed[i] *= 1.0001;
    const Verdict verdict = close_all(perturbed, want, 1e-5, 1e-6);
    CHECK_FALSE(verdict);
    CHECK(verdict.reason.find("element " + std::to_string(i)) != std::string::npos);
  }
  CHECK_FALSE(close_all(std::vector{0.1, -0.2}, want, 1, 1));
  CHECK_FALSE(close_all(std::vector<double>{}, want, 1, 1));
  CHECK_FALSE(close_all(want, std::vector<double>{}, 1, 1));
}

TEST_CASE("same_indices rejects swapped, missing, doubled and unexpected indices", "[support]") {
  const std::vector<Integer> want{2, 3, 5, 7};
  CHECK(same_indices(want, want));
  CHECK(same_indices(std::vector<int>{2, 3, 5, 7}, want));
  CHECK_FALSE(same_indices(std::vector<Integer>{2, 5, 3, 7}, want));
  CHECK_FALSE(same_indices(std::vector<Integer>{2, 3, 5}, want));
  CHECK_FALSE(same_indices(std::vector<Integer>{2, 3, 5, 7, 7}, want));
  CHECK_FALSE(same_indices(std::vector<Integer>{}, want));
  const Verdict swapped = same_indices(std::vector<Integer>{2, 4, 5, 7}, want);
  CHECK_FALSE(swapped);
  CHECK(swapped.reason == "index 1: got 4, want 3; unexpected 4; missing 3");
}

TEST_CASE("error bands reject errors that are too large, or suspiciously small", "[support]") {
  const Band mean{1e-9, 1e-7}, largest{1e-8, 1e-6};
  const auto judge = [&](const std::vector<double>& errors) {
    ErrorStatistics statistics;
    for (double error : errors) statistics.add(3 + error, 3);
    return within(statistics, mean, largest);
  };
  CHECK(judge({1e-7, -5e-8, 0}));
  CHECK_FALSE(judge({1e-7, 1e-5, 0}));     // one too large
  CHECK_FALSE(judge({5e-7, 5e-7, 5e-7}));  // too large on average
  CHECK_FALSE(judge({0, 0, 0}));           // nothing was rounded, so nothing was compared
  CHECK_FALSE(judge(std::vector<double>(99, 5e-9)));  // largest below its band
  CHECK_FALSE(judge({}));
  CHECK_FALSE(judge({1e-7, std::numeric_limits<double>::quiet_NaN()}));
  CHECK_FALSE(judge({1e-7, std::numeric_limits<double>::infinity()}));
  ErrorStatistics scaled;
  scaled.add(100.5, 100, 100);
  scaled.add(1, 1);
  CHECK(close(scaled.largest(), 0.005, 1e-12, 0));
  CHECK(scaled.inexact_share() == 0.5);
}

TEST_CASE("margins report near ties and set exact ties apart", "[support]") {
  reference::Margin near;
  CHECK(reference::choose_one_lowest({0.5, 0.25, 0.2500001}, near) == 1);
  CHECK(near.smallest < 1e-6);
  CHECK(near.exact_ties == 0);
  reference::Margin tie;
  CHECK(reference::choose_lowest({0.5, 0.25, 0.25, 0.25}, 2, tie) ==
        std::vector<std::size_t>{1, 2});
  CHECK(tie.exact_ties == 2);
  CHECK(tie.smallest == 0.5);
  reference::Margin beside_a_tie;  // the tie hides nothing of the near tie next to it
  CHECK(reference::choose_highest({1, 1, 1 - 1e-9}, beside_a_tie) == 0);
  CHECK(beside_a_tie.smallest < 1e-8);
  reference::Margin averaged;  // equal in double precision is not equal in every arithmetic
  CHECK(reference::choose_highest({1, 1, 0.5}, averaged, 0, {false, true, false}) == 0);
  CHECK(averaged.smallest == 0);
  CHECK(averaged.exact_ties == 0);
  reference::Margin apart;  // a rounded score that is clearly lower spoils no tie
  CHECK(reference::choose_highest({1, 1, 0.5}, apart, 0, {false, false, true}) == 0);
  CHECK(apart.smallest == 0.5);
  CHECK(apart.exact_ties == 1);
  reference::Margin order;  // which of two victims goes first is no choice
  CHECK(reference::choose_lowest({0.1, 0.1000001, 9}, 2, order).size() == 2);
  CHECK(order.smallest > 0.9);
  reference::Margin vanishing;  // below what a float32 share can hold
  reference::choose_one_lowest({1e-60, 1e-70, 0.5}, vanishing);
  CHECK(vanishing.smallest < 1e-20);
  reference::Margin none;
  CHECK_THROWS_AS(reference::choose_highest({}, none), std::logic_error);
  CHECK_THROWS_AS(reference::choose_lowest({1}, 2, none), std::logic_error);
}

namespace {

/// Whether a golden ZSMerge trace, replayed with these options, is what the case says.
Verdict replay(const GoldenCase& golden, const reference::ZSMerge::Options& options,
               double output_factor = 1) {
  auto head = reference::make_head<reference::ZSMerge>(options);
  const GoldenTokens tokens(golden, 0);
  head.extend(tokens.prompt());
  for (Integer step = 0; step < tokens.steps(); ++step) {
    auto output = head.extend(tokens.step(step)).at(0).outputs.at(0);
    output.at(3) *= output_factor;
    Verdict verdict = close_all(output, golden.floats("step_output").vector(step, 0, 0),
                                golden.tolerance().relative, golden.tolerance().absolute);
    if (!verdict) return verdict;
    std::vector<Integer> live;
    for (const auto& entry : head.entries())
      if (!entry.residual) live.push_back(entry.position);
    verdict = same_indices(live, without_padding(golden.integers("live_positions"), step + 1, 0));
    if (!verdict) return verdict;
  }
  return {};
}

}  // namespace

TEST_CASE("a golden replay with any setting changed is rejected", "[support][golden]") {
  const GoldenCase golden("zsmerge_definition_mha_br2");
  reference::ZSMerge::Options right;
  right.budget = golden.setting<Integer>("budget");
  right.proximity = golden.setting<Integer>("proximity");
  right.residual = golden.setting<Integer>("residual");
  right.decay = golden.setting<double>("decay");
  right.alpha = golden.setting<double>("alpha");
  right.window = golden.setting<Integer>("window");
  CHECK(replay(golden, right));
  CHECK_FALSE(replay(golden, right, 1.0001));
  const auto changed = [&](auto change) {
    auto options = right;
    change(options);
    return replay(golden, options);
  };
  CHECK_FALSE(changed([](auto& o) { o.budget -= 1; }));
  CHECK_FALSE(changed([](auto& o) { o.proximity += 1; }));
  CHECK_FALSE(changed([](auto& o) { o.residual -= 1; }));
  CHECK_FALSE(changed([](auto& o) { o.decay *= 0.9; }));
  CHECK_FALSE(changed([](auto& o) { o.alpha -= 0.3; }));
  CHECK_FALSE(changed([](auto& o) { o.window = 1; }));
}

TEST_CASE("golden cases that are not there are errors, not empty lists", "[support]") {
  CHECK_THROWS_AS(golden_cases("no such case"), std::runtime_error);
  CHECK_THROWS_AS(GoldenCase("no such case"), std::runtime_error);
  const GoldenCase golden("eviction_identity");
  CHECK_THROWS_AS(golden.floats("no such tensor"), std::runtime_error);
  CHECK_THROWS_AS(golden.floats("evicted"), std::runtime_error);  // int64, not float
  const auto& q = golden.floats("q");
  CHECK_THROWS_AS(q(0, 0), std::out_of_range);
  CHECK_THROWS_AS(q(0, 0, q.dim(2)), std::out_of_range);
  CHECK_THROWS_AS(q(-1, 0, 0), std::out_of_range);
}

TEST_CASE("a truncated golden file is refused", "[support]") {
  const auto source = golden_folder() / "eviction_identity" / "data.safetensors";
  const auto path = std::filesystem::temp_directory_path() /
                    ("tersekv_truncated_" + std::to_string(std::random_device{}()));
  for (const std::uintmax_t size :
       {std::uintmax_t{4}, std::uintmax_t{60}, std::filesystem::file_size(source) - 1}) {
    std::filesystem::copy_file(source, path, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path, size);
    CHECK_THROWS(SafetensorsFile(path.string()));
  }
  std::filesystem::remove(path);
}

TEST_CASE("random floats repeat with the seed and fill their range", "[support]") {
  Random a(1), b(1), c(2);
  const auto first = a.normals(1000);
  CHECK(first == b.normals(1000));
  CHECK(first != c.normals(1000));
  double sum = 0, squares = 0;
  for (float x : first) {
    sum += x;
    squares += x * static_cast<double>(x);
  }
  CHECK(std::fabs(sum / 1000) < 0.15);
  CHECK(std::fabs(squares / 1000 - 1) < 0.2);
  const auto uniform = a.uniforms(1000, -2, 3);
  CHECK(*std::min_element(uniform.begin(), uniform.end()) >= -2);
  CHECK(*std::min_element(uniform.begin(), uniform.end()) < -1.9);
  CHECK(*std::max_element(uniform.begin(), uniform.end()) > 2.9);
  CHECK(*std::max_element(uniform.begin(), uniform.end()) <= 3);
  std::vector<int> counts(4, 0);
  for (int i = 0; i < 1000; ++i) ++counts.at(static_cast<std::size_t>(a.integer(5, 8) - 5));
  CHECK(*std::min_element(counts.begin(), counts.end()) > 200);
}
