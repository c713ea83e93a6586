// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace support {

using Integer = std::int64_t;

/// A dense row-major tensor: `t(i, j, k)` reads an element, `t.row(i, j)` points at a sub-array.
template <class T>
struct Tensor {
  std::vector<Integer> shape;
  std::vector<T> data;

  Integer dim(std::size_t axis) const { return shape.at(axis); }

  /// Offset of the sub-array named by the leading `indices`.
  template <class... I>
  Integer offset(I... indices) const {
    const std::vector<Integer> given{static_cast<Integer>(indices)...};
    if (given.size() > shape.size()) throw std::out_of_range("more indices than axes");
    Integer flat = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const Integer index = axis < given.size() ? given[axis] : 0;
      if (index < 0 || index >= shape[axis]) throw std::out_of_range("tensor index out of range");
      flat = flat * shape[axis] + index;
    }
    return flat;
  }

  template <class... I>
  T operator()(I... indices) const {
    if (sizeof...(indices) != shape.size()) throw std::out_of_range("one index per axis expected");
    return data[static_cast<std::size_t>(offset(indices...))];
  }

  template <class... I>
  const T* row(I... indices) const {
    return data.data() + offset(indices...);
  }

  /// The last axis under the leading `indices`, as a vector of U.
  template <class U = T, class... I>
  std::vector<U> vector(I... indices) const {
    if (sizeof...(indices) + 1 != shape.size())
      throw std::out_of_range("all but one axis expected");
    const T* begin = row(indices...);
    return std::vector<U>(begin, begin + shape.back());
  }
};

/// The float32 and int64 tensors of a safetensors file. For trusted test data: it checks what keeps
/// a damaged file from being read out of bounds, and nothing more.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const Tensor<float>& floats(const std::string& name) const;
  const Tensor<Integer>& integers(const std::string& name) const;
  bool has(const std::string& name) const;

 private:
  std::map<std::string, Tensor<float>> floats_;
  std::map<std::string, Tensor<Integer>> integers_;
};

}  // namespace support
