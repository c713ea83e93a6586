// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llama_test {

/// Value types by their numbers in the file format.
enum ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

/// Appends little-endian values to a growing file.
class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    const std::size_t at = data.size();
    data.resize(at + sizeof(T));
    std::memcpy(data.data() + at, &value, sizeof(T));
    return *this;
  }
  Bytes& put_raw(std::string_view text) {
    for (const char c : text) data.push_back(static_cast<std::byte>(c));
    return *this;
  }
  Bytes& put_string(std::string_view text) {
    return put(static_cast<std::uint64_t>(text.size())).put_raw(text);
  }
  Bytes& pad_to(std::size_t multiple) {
    while (data.size() % multiple != 0) data.push_back(std::byte{0});
    return *this;
  }

  std::vector<std::byte> data;
};

/// Writes a small GGUF file into memory.
class GgufBuilder {
 public:
  template <class T>
  GgufBuilder& value(std::string_view key, ValueType type, T number) {
    start(key).put<std::uint32_t>(type).put(number);
    return *this;
  }
  GgufBuilder& text(std::string_view key, std::string_view value) {
    start(key).put<std::uint32_t>(string).put_string(value);
    return *this;
  }
  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
    start_array(key, string, values.size());
    for (const std::string& value : values) metadata_.put_string(value);
    return *this;
  }
  GgufBuilder& ints(std::string_view key, const std::vector<std::int32_t>& values) {
    start_array(key, i32, values.size());
    for (const std::int32_t value : values) metadata_.put(value);
    return *this;
  }
  GgufBuilder& tensor(std::string_view name, const std::vector<std::uint64_t>& shape,
                      std::uint32_t type, std::span<const std::byte> content) {
    infos_.put_string(name).put(static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t extent : shape) infos_.put(extent);
    content_.pad_to(32);
    infos_.put(type).put(static_cast<std::uint64_t>(content_.data.size()));
    content_.data.insert(content_.data.end(), content.begin(), content.end());
    ++num_tensors_;
    return *this;
  }

  /// The file; its last byte is the last tensor's.
  std::vector<std::byte> build(std::uint32_t version = 3) const {
    Bytes file;
    file.put_raw("GGUF").put(version).put(num_tensors_).put(num_values_);
    for (const Bytes* part : {&metadata_, &infos_}) {
      file.data.insert(file.data.end(), part->data.begin(), part->data.end());
    }
    if (num_tensors_ > 0) file.pad_to(32);
    file.data.insert(file.data.end(), content_.data.begin(), content_.data.end());
    return file.data;
  }

 private:
  Bytes& start(std::string_view key) {
    ++num_values_;
    return metadata_.put_string(key);
  }
  void start_array(std::string_view key, ValueType type, std::size_t count) {
    start(key).put<std::uint32_t>(array).put<std::uint32_t>(type);
    metadata_.put(static_cast<std::uint64_t>(count));
  }

  Bytes metadata_, infos_, content_;
  std::uint64_t num_values_ = 0, num_tensors_ = 0;
};

}  // namespace llama_test
