// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapped_file.hpp"

namespace llama {

/// A name from a file for use in a one-line message, whatever bytes it holds, and however many.
std::string quoted(std::string_view text);

/// How a tensor's elements are stored; the numbers are those of the file format.
enum class TensorType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  bf16 = 30,
};

/// Elements of a row are stored in blocks of `elements` that take `bytes` each.
struct BlockLayout {
  std::string_view name;
  std::int64_t elements;
  std::int64_t bytes;
};

/// Layout of a known type; none for a number that is not a TensorType.
constexpr std::optional<BlockLayout> block_layout(TensorType type) {
  switch (type) {
    case TensorType::f32:
      return BlockLayout{"F32", 1, 4};
    case TensorType::f16:
      return BlockLayout{"F16", 1, 2};
    case TensorType::bf16:
      return BlockLayout{"BF16", 1, 2};
    case TensorType::q4_0:
      return BlockLayout{"Q4_0", 32, 18};
    case TensorType::q4_1:
      return BlockLayout{"Q4_1", 32, 20};
    case TensorType::q5_0:
      return BlockLayout{"Q5_0", 32, 22};
    case TensorType::q5_1:
      return BlockLayout{"Q5_1", 32, 24};
    case TensorType::q8_0:
      return BlockLayout{"Q8_0", 32, 34};
  }
  return std::nullopt;
}

/// A weight as it lies in the file. Row-major [rows, cols]: a row is contiguous and is what a
/// matrix-vector product multiplies with its input. Borrowed from the GgufFile it came from.
struct Tensor {
  std::string_view name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  ///< as in the file: shape[0] = cols, the fastest dimension
  const std::byte* data = nullptr;  ///< [rows, row_bytes]
  std::int64_t rows = 0;            ///< product of all dimensions but the first
  std::int64_t cols = 0;            ///< elements per row, a multiple of the block
  std::int64_t row_bytes = 0;
};

/// A GGUF file (version 2 or 3, little-endian): metadata and tensors, read in place.
///
/// Everything a tensor or a value refers to is checked to lie inside the file when it is opened, so
/// later reads need no checks. Views handed out live as long as the file.
/// Throws std::runtime_error, one line naming the file and what is wrong, where the file cannot be
/// read, is damaged, lacks what is asked for, or holds it as another type.
class GgufFile {
 public:
  /// Maps `path`; pages are read when they are first touched.
  explicit GgufFile(const std::filesystem::path& path);
  /// Reads a file that is in memory already; `bytes` must outlive this object and start at an
  /// address aligned for float. `name` is used in messages.
  GgufFile(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  std::uint32_t version() const { return version_; }

  bool has(std::string_view key) const { return values_.contains(key); }

  /// Typed access to metadata. An integer of any width serves where its value fits; a float where
  /// the file has either width. With a fallback, a missing key is no error; a wrong type still is.
  std::uint32_t get_u32(std::string_view key) const;
  std::uint32_t get_u32(std::string_view key, std::uint32_t fallback) const;
  float get_f32(std::string_view key) const;
  float get_f32(std::string_view key, float fallback) const;
  bool get_bool(std::string_view key) const;
  bool get_bool(std::string_view key, bool fallback) const;
  std::string_view get_string(std::string_view key) const;
  std::string_view get_string(std::string_view key, std::string_view fallback) const;
  /// Arrays, decoded at each call.
  std::vector<std::string_view> get_strings(std::string_view key) const;
  std::vector<std::int64_t> get_ints(std::string_view key) const;

  /// All tensors, by name.
  const std::map<std::string_view, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find_tensor(std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;
  /// The tensor, checked to be [rows, cols]; a vector has one row.
  const Tensor& tensor(std::string_view name, std::int64_t rows, std::int64_t cols) const;

 private:
  enum class ValueType : std::uint32_t {
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
  // `count` elements of `type` at `data`, checked to lie inside the file.
  struct Value {
    ValueType type;
    bool is_array;
    std::uint64_t count;
    const std::byte* data;
  };
  class Cursor;

  void parse();
  void read_metadata(Cursor& cursor, std::uint64_t count);
  void read_tensors(Cursor& cursor, std::uint64_t count);
  Tensor read_tensor_info(Cursor& cursor) const;
  const Value& scalar(std::string_view key) const;
  const Value& array(std::string_view key) const;
  const Value& value(std::string_view key) const;
  std::int64_t decode_int(std::string_view key, const Value& value, std::uint64_t index) const;
  [[noreturn]] void fail_type(std::string_view key, std::string_view expected,
                              const Value& got) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  MappedFile mapping_;                // empty where the bytes are borrowed
  std::span<const std::byte> bytes_;  // the whole file
  std::uint32_t version_ = 0;
  std::map<std::string_view, Value, std::less<>> values_;
  std::map<std::string_view, Tensor, std::less<>> tensors_;
};

}  // namespace llama
