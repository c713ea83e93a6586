// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "../support/golden.hpp"

namespace {

/// Golden cases by the prefix of their name, and the test that checks them.
const std::map<std::string, std::string> kChecked = {
    {"attention_group", "test_reference_attention.cpp"},
    {"eviction_identity", "test_reference_attention.cpp"},
    {"keepkv_ema", "test_reference_keepkv.cpp"},
    {"keepkv_merge", "test_reference_keepkv.cpp"},
    {"kvzap_linear", "test_reference_kvzap.cpp"},
    {"kvzap_mlp", "test_reference_kvzap.cpp"},
    {"kvzap_threshold", "test_reference_kvzap.cpp"},
    {"morphkv_", "test_reference_morphkv.cpp"},
    {"scores_", "test_reference_baselines.cpp"},
    {"weightedkv_", "test_reference_weightedkv.cpp"},
    {"zip_chain", "test_reference_keepkv.cpp"},
    {"zip_merge", "test_reference_keepkv.cpp"},
    {"zsmerge_definition", "test_reference_zsmerge.cpp"},
    {"zsmerge_gqa3", "test_reference_zsmerge.cpp"},
    {"zsmerge_mha", "test_reference_zsmerge.cpp"},
    {"zsmerge_prompt_over_budget", "test_reference_zsmerge.cpp"},
    {"zsmerge_theorem1", "test_reference_attention.cpp"},
};

/// Golden cases of what this library does not have, and why nothing checks them.
const std::map<std::string, std::string> kNotBuilt = {
    {"expected_attention", "no policy predicts future queries from their statistics"},
    {"kvzip_scores", "the KVzip oracle trains surrogates; the library only runs them"},
    {"pyramid_budgets", "budgets per head are given by the caller, not computed"},
};

/// Parts of checked cases without a counterpart here: tensors of the scores_* cases.
const std::map<std::string, std::string> kNotBuiltTensors = {
    {"adakv_", "no head-wise budget allocation by score"},
    {"criticalkv_", "no selection by value norm"},
    {"keydiff_", "no key-similarity eviction"},
    {"knorm_", "no key-norm eviction"},
    {"lagkv_", "no lag-relative eviction"},
    {"value_norm_l1", "belongs to the selection by value norm"},
    {"w_o", "belongs to the selection by value norm"},
};

/// Tensors of the scores_* cases that are read.
const std::map<std::string, std::string> kReadTensors = {
    {"attention", ""}, {"average_attention_", ""}, {"k", ""},     {"q", ""},
    {"snapkv_", ""},   {"streaming_", ""},         {"tova_", ""}, {"v", ""},
};

std::size_t prefixes_of(const std::map<std::string, std::string>& list, const std::string& name) {
  std::size_t count = 0;
  for (const auto& [prefix, text] : list)
    if (prefix.size() == 1 ? name == prefix : name.starts_with(prefix)) ++count;
  return count;
}

}  // namespace

TEST_CASE("every golden case is checked or listed with the reason why not", "[reference][golden]") {
  std::map<std::string, std::size_t> uses;
  for (const std::string& name : support::golden_cases()) {
    INFO(name);
    CHECK(prefixes_of(kChecked, name) + prefixes_of(kNotBuilt, name) == 1);
    for (const auto* list : {&kChecked, &kNotBuilt})
      for (const auto& [prefix, text] : *list) uses[prefix] += name.starts_with(prefix) ? 1U : 0U;
  }
  for (const auto& [prefix, count] : uses) {
    INFO(prefix);
    CHECK(count > 0);
  }
}

TEST_CASE("every golden case that counts as checked is named by the tests of both", "[golden]") {
  const std::filesystem::path tests = std::filesystem::path(TERSEKV_SOURCE_DIR) / "tests";
  const auto names = [](const std::filesystem::path& file, const std::string& name) {
    std::ifstream stream(file);
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    return text.find('"' + name) != std::string::npos;
  };
  for (const auto& [name, file] : kChecked) {
    CAPTURE(name, file);
    CHECK(names(tests / "reference" / file, name));
    int of_library = 0;
    for (const auto& each : std::filesystem::directory_iterator(tests)) {
      of_library += each.is_regular_file() && names(each.path(), name) ? 1 : 0;
    }
    CHECK(of_library > 0);
  }
}

TEST_CASE("every tensor of the golden scores is checked or listed with the reason why not",
          "[reference][golden]") {
  for (const std::string& name : support::golden_cases("scores_")) {
    const support::GoldenCase golden(name);
    for (const auto& [tensor, description] : golden.meta().at("tensors").items()) {
      INFO(name << " " << tensor);
      CHECK(golden.has(tensor));
      CHECK((prefixes_of(kReadTensors, tensor) > 0) != (prefixes_of(kNotBuiltTensors, tensor) > 0));
    }
  }
}
