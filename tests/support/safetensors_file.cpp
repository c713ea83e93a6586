// SPDX-License-Identifier: Apache-2.0
#include "safetensors_file.hpp"

#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace support {

namespace {

template <class T>
Tensor<T> read(const std::string& name, const std::vector<Integer>& shape, const char* data,
               std::size_t bytes) {
  std::size_t count = 1;
  for (Integer extent : shape) count *= static_cast<std::size_t>(extent);
  if (count * sizeof(T) != bytes) throw std::runtime_error("tensor " + name + ": size and shape");
  Tensor<T> tensor{shape, std::vector<T>(count)};
  if (bytes != 0) std::memcpy(tensor.data.data(), data, bytes);
  return tensor;
}

template <class T>
const Tensor<T>& find(const std::map<std::string, Tensor<T>>& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw std::runtime_error("no such tensor: " + name);
  return found->second;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
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

const Tensor<float>& SafetensorsFile::floats(const std::string& name) const {
  return find(floats_, name);
}
const Tensor<Integer>& SafetensorsFile::integers(const std::string& name) const {
  return find(integers_, name);
}
bool SafetensorsFile::has(const std::string& name) const {
  return floats_.contains(name) || integers_.contains(name);
}

}  // namespace support
