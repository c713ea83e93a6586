// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
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
  explicit SafetensorsFile(const std::string& path) {
    static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + path);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                  std::istreambuf_iterator<char>());
    std::uint64_t header_bytes = 0;
    if (bytes.size() < sizeof(header_bytes)) throw std::runtime_error("too short: " + path);
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    if (header_bytes > bytes.size() - sizeof(header_bytes))
      throw std::runtime_error("header longer than the file: " + path);
    const char* header_begin = bytes.data() + sizeof(header_bytes);
    const char* data = header_begin + header_bytes;
    const std::size_t data_bytes = bytes.size() - sizeof(header_bytes) - header_bytes;
    const nlohmann::json header = nlohmann::json::parse(header_begin, data);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
      const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
      if (begin > end || end > data_bytes) throw std::runtime_error("tensor " + name + ": offsets");
      const auto shape = entry.at("shape").get<std::vector<Integer>>();
      const auto dtype = entry.at("dtype").get<std::string>();
      if (dtype == "F32") {
        floats_[name] = read<float>(name, shape, data + begin, end - begin);
      } else if (dtype == "I64") {
        integers_[name] = read<Integer>(name, shape, data + begin, end - begin);
      } else {
        throw std::runtime_error("tensor " + name + ": unexpected dtype " + dtype);
      }
    }
  }

  const Tensor<float>& floats(const std::string& name) const { return find(floats_, name); }
  const Tensor<Integer>& integers(const std::string& name) const { return find(integers_, name); }
  bool has(const std::string& name) const {
    return floats_.contains(name) || integers_.contains(name);
  }

 private:
  template <class T>
  static Tensor<T> read(const std::string& name, const std::vector<Integer>& shape,
                        const char* data, std::size_t bytes) {
    std::size_t count = 1;
    for (Integer extent : shape) count *= static_cast<std::size_t>(extent);
    if (count * sizeof(T) != bytes) throw std::runtime_error("tensor " + name + ": size and shape");
    Tensor<T> tensor{shape, std::vector<T>(count)};
    if (bytes != 0) std::memcpy(tensor.data.data(), data, bytes);
    return tensor;
  }

  template <class T>
  static const Tensor<T>& find(const std::map<std::string, Tensor<T>>& tensors,
                               const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw std::runtime_error("no such tensor: " + name);
    return found->second;
  }

  std::map<std::string, Tensor<float>> floats_;
  std::map<std::string, Tensor<Integer>> integers_;
};

}  // namespace support
