// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tersekv/element.hpp>
#include <vector>

// Writes safetensors files for the tests that read them.

namespace written {

using tersekv::BFloat16;
using tersekv::Half;

/// A file that is there as long as this is.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() /
               ("tersekv-test-" + std::to_string(std::uintptr_t(this)) + ".safetensors"))
                  .string()) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string little_endian(std::uint64_t x, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(x >> (8 * i) & 0xff);
  return text;
}
inline std::string file_of(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

template <class T>
std::string bytes_of(const std::vector<float>& numbers) {
  std::string text;
  for (const float x : numbers) {
    const T element = tersekv::from_float<T>(x);
    text.append(reinterpret_cast<const char*>(&element), sizeof element);
  }
  return text;
}

/// Header and data of several tensors, one after the other.
struct Builder {
  void add(const std::string& name, const std::string& type, const std::string& shape,
           const std::string& bytes) {
    if (header.size() > 1) header += ',';
    header.append("\"").append(name).append("\":{\"dtype\":\"").append(type);
    header.append("\",\"shape\":").append(shape).append(",\"data_offsets\":[");
    header.append(std::to_string(data.size())).append(",");
    header.append(std::to_string(data.size() + bytes.size())).append("]}");
    data += bytes;
  }
  std::string file() const { return file_of(header + "}", data); }
  std::string header = "{", data;
};

// Exact in every type.
inline const std::vector<float> kWeight = {1, -2, 0.5f, 4, 0, -0.25f}, kBias = {1.5f, -3};

inline std::string linear_file(const std::string& type) {
  const auto bytes = [&](const std::vector<float>& x) {
    return type == "F32"   ? bytes_of<float>(x)
           : type == "F16" ? bytes_of<Half>(x)
                           : bytes_of<BFloat16>(x);
  };
  Builder builder;
  builder.add("__metadata__x", "F32", "[]", bytes({7}));
  builder.add("layers.0.weight", type, "[2,3]", bytes(kWeight));
  builder.add("layers.0.bias", type, "[2]", bytes(kBias));
  return builder.file();
}

}  // namespace written
