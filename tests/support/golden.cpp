// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace support {

std::filesystem::path golden_folder() {
  return std::filesystem::path(TERSEKV_SOURCE_DIR) / "tests" / "data" / "golden";
}

GoldenCase::GoldenCase(const std::string& name)
    : name_(name), tensors_((golden_folder() / name / "data.safetensors").string()) {
  std::ifstream file(golden_folder() / name / "meta.json");
  if (!file) throw std::runtime_error("no meta.json in golden case " + name);
  meta_ = std::make_shared<const nlohmann::json>(nlohmann::json::parse(file));
}

template <class T>
T GoldenCase::setting(const std::string& key) const {
  return meta_->at(nlohmann::json::json_pointer("/settings/" + key)).get<T>();
}
template double GoldenCase::setting(const std::string&) const;
template float GoldenCase::setting(const std::string&) const;
template Integer GoldenCase::setting(const std::string&) const;
template std::string GoldenCase::setting(const std::string&) const;
template std::vector<double> GoldenCase::setting(const std::string&) const;
template std::vector<float> GoldenCase::setting(const std::string&) const;
template std::vector<std::string> GoldenCase::setting(const std::string&) const;

Tolerance GoldenCase::tolerance() const {
  const auto& t = meta_->at("tolerance");
  return {t.at("relative").get<double>(), t.at("absolute").get<double>()};
}

Tolerance GoldenCase::tolerance(const std::string& key) const {
  const double both = meta_->at("tolerance").at(key).get<double>();
  return {both, both};
}

std::vector<std::string> golden_cases(const std::string& prefix) {
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
