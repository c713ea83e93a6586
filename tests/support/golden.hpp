// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "safetensors_file.hpp"

namespace support {

struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

std::filesystem::path golden_folder();

/// One folder of golden data: tensors, settings and the tolerance its floats must meet.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name);

  const std::string& name() const { return name_; }
  const nlohmann::json& meta() const { return *meta_; }
  const Tensor<float>& floats(const std::string& tensor) const { return tensors_.floats(tensor); }
  const Tensor<Integer>& integers(const std::string& tensor) const {
    return tensors_.integers(tensor);
  }
  bool has(const std::string& tensor) const { return tensors_.has(tensor); }

  /// The setting `key`, or `group/key`. For the types that golden.cpp lists.
  template <class T>
  T setting(const std::string& key) const;

  Tolerance tolerance() const;
  /// A tolerance the case names for one of its scenarios, used as relative and as absolute bound.
  Tolerance tolerance(const std::string& key) const;

 private:
  std::string name_;
  SafetensorsFile tensors_;
  std::shared_ptr<const nlohmann::json> meta_;  // read where it is compiled, once for all tests
};

/// Names of the golden cases that start with `prefix`, sorted. Throws when there is none, so that a
/// moved folder cannot turn a test into nothing.
std::vector<std::string> golden_cases(const std::string& prefix = "");

}  // namespace support
