// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "safetensors_file.hpp"

namespace support {

struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

inline std::filesystem::path golden_folder() {
  return std::filesystem::path(TERSEKV_SOURCE_DIR) / "tests" / "data" / "golden";
}

/// One folder of golden data: tensors, settings and the tolerance its floats must meet.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name)
      : name_(name), tensors_((golden_folder() / name / "data.safetensors").string()) {
    std::ifstream file(golden_folder() / name / "meta.json");
    if (!file) throw std::runtime_error("no meta.json in golden case " + name);
    meta_ = nlohmann::json::parse(file);
  }

  const std::string& name() const { return name_; }
  const nlohmann::json& meta() const { return meta_; }
  const Tensor<float>& floats(const std::string& tensor) const { return tensors_.floats(tensor); }
  const Tensor<Integer>& integers(const std::string& tensor) const {
    return tensors_.integers(tensor);
  }
  bool has(const std::string& tensor) const { return tensors_.has(tensor); }

  template <class T>
  T setting(const std::string& key) const {
    return meta_.at("settings").at(key).get<T>();
  }

  Tolerance tolerance() const {
    const auto& t = meta_.at("tolerance");
    return {t.at("relative").get<double>(), t.at("absolute").get<double>()};
  }

  /// A tolerance the case names for one of its scenarios, used as relative and as absolute bound.
  Tolerance tolerance(const std::string& key) const {
    const double both = meta_.at("tolerance").at(key).get<double>();
    return {both, both};
  }

 private:
  std::string name_;
  SafetensorsFile tensors_;
  nlohmann::json meta_;
};

/// Names of the golden cases that start with `prefix`, sorted. Throws when there is none, so that a
/// moved folder cannot turn a test into nothing.
inline std::vector<std::string> golden_cases(const std::string& prefix = "") {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && std::filesystem::exists(entry.path() / "data.safetensors"))
      names.push_back(name);
  }
  if (names.empty()) throw std::runtime_error("no golden case starts with '" + prefix + "'");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace support
