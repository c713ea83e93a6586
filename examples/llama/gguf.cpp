// SPDX-License-Identifier: Apache-2.0
#include "gguf.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

namespace llama {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place");

constexpr std::uint64_t kMaxDimensions = 4;
constexpr std::uint32_t kDefaultAlignment = 32;
// The smallest things that can follow in the file; they bound the counts it may claim.
constexpr std::uint64_t kMinValueBytes = 8 + 4 + 1;  // key length, type, value
constexpr std::uint64_t kMinTensorBytes =
    8 + 4 + 8 + 4 + 8;  // name length, rank, dim, type, offset

// Names of value types and their sizes, in the order of the format; 0: of no fixed size.
struct ValueTypeInfo {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<ValueTypeInfo, 13> kValueTypes = {{
    {"u8", 1},
    {"i8", 1},
    {"u16", 2},
    {"i16", 2},
    {"u32", 4},
    {"i32", 4},
    {"f32", 4},
    {"bool", 1},
    {"string", 0},
    {"array", 0},
    {"u64", 8},
    {"i64", 8},
    {"f64", 8},
}};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::string_view load_string(const std::byte* at) {
  return {reinterpret_cast<const char*>(at + 8), load<std::uint64_t>(at)};
}

std::string expected_got(std::string_view expected, std::string_view got) {
  return std::string(": expected ").append(expected).append(", got ").append(got);
}

std::string shape_text(std::int64_t rows, std::int64_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  return out + (text.size() > kShown ? "...'" : "'");
}

// Reads forward through the header; every step is checked against what is left of the file.
class GgufFile::Cursor {
 public:
  explicit Cursor(const GgufFile& file) : file_(file) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return file_.bytes_.size() - position_; }

  const std::byte* take(std::uint64_t count, std::string_view what) {
    if (count > remaining()) {
      file_.fail("the file ends inside " + std::string(what) +
                 expected_got(std::to_string(count) + " bytes at " + std::to_string(position_),
                              std::to_string(remaining())));
    }
    const std::byte* at = file_.bytes_.data() + position_;
    position_ += count;
    return at;
  }

  template <class T>
  T read(std::string_view what) {
    return load<T>(take(sizeof(T), what));
  }

  std::string_view read_string(std::string_view what) {
    const std::byte* at = take(8, what);
    take(load<std::uint64_t>(at), what);
    return load_string(at);
  }

  // A count of things that take at least `min_bytes` each, so that it cannot exceed what is left.
  std::uint64_t check_count(std::uint64_t count, std::uint64_t min_bytes, std::string_view what) {
    if (count > remaining() / min_bytes) {
      file_.fail("too many " + std::string(what) +
                 expected_got("at most " + std::to_string(remaining() / min_bytes) +
                                  " in what is left of the file",
                              std::to_string(count)));
    }
    return count;
  }

 private:
  const GgufFile& file_;
  std::uint64_t position_ = 0;
};

GgufFile::GgufFile(const std::filesystem::path& path)
    : name_(path.string()), mapping_(path), bytes_(mapping_.bytes()) {
  parse();
}

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)), bytes_(bytes) {
  parse();
}

void GgufFile::parse() {
  Cursor cursor(*this);
  if (std::memcmp(cursor.take(4, "the magic number"), "GGUF", 4) != 0) {
    fail("not a GGUF file: it does not begin with 'GGUF'");
  }
  version_ = cursor.read<std::uint32_t>("the version");
  if (version_ != 2 && version_ != 3) {
    fail("version" + expected_got("2 or 3, little-endian", std::to_string(version_)));
  }
  const auto tensor_count = cursor.read<std::uint64_t>("the number of tensors");
  const auto value_count = cursor.read<std::uint64_t>("the number of metadata values");
  read_metadata(cursor, cursor.check_count(value_count, kMinValueBytes, "metadata values"));
  read_tensors(cursor, cursor.check_count(tensor_count, kMinTensorBytes, "tensors"));
}

void GgufFile::read_metadata(Cursor& cursor, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view key = cursor.read_string("a metadata key");
    const std::string what = "metadata " + quoted(key);
    const auto read_type = [&] {
      const auto type = cursor.read<std::uint32_t>(what);
      if (type >= kValueTypes.size()) {
        fail(what + " has an unknown type" + expected_got("0 to 12", std::to_string(type)));
      }
      return static_cast<ValueType>(type);
    };

    Value value = {read_type(), false, 1, nullptr};
    if (value.type == ValueType::array) {
      value.is_array = true;
      value.type = read_type();
      value.count = cursor.read<std::uint64_t>(what);
      if (value.type == ValueType::array) fail(what + " is an array of arrays: not supported");
    }
    const std::uint64_t size = kValueTypes[static_cast<std::size_t>(value.type)].bytes;
    value.data = bytes_.data() + cursor.position();
    if (value.type == ValueType::string) {
      cursor.check_count(value.count, 8, "strings in " + what);
      for (std::uint64_t k = 0; k < value.count; ++k) cursor.read_string(what);
    } else {
      cursor.take(cursor.check_count(value.count, size, "elements in " + what) * size, what);
    }
    if (!values_.emplace(key, value).second) fail(what + " is there twice");
  }
}

Tensor GgufFile::read_tensor_info(Cursor& cursor) const {
  Tensor tensor;
  tensor.name = cursor.read_string("a tensor name");
  const std::string what = "tensor " + quoted(tensor.name);
  const auto rank = cursor.read<std::uint32_t>(what);
  if (rank < 1 || rank > kMaxDimensions) {
    fail(what + " has a bad number of dimensions" + expected_got("1 to 4", std::to_string(rank)));
  }
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto extent = cursor.read<std::uint64_t>(what);
    const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / elements;
    if (extent < 1 || extent > static_cast<std::uint64_t>(limit)) {
      fail(what + " has a bad dimension" +
           expected_got("1 to " + std::to_string(limit), std::to_string(extent)));
    }
    tensor.shape.push_back(static_cast<std::int64_t>(extent));
    elements *= tensor.shape.back();
  }
  const auto type = cursor.read<std::uint32_t>(what);
  tensor.type = static_cast<TensorType>(type);
  const std::optional<BlockLayout> layout = block_layout(tensor.type);
  if (!layout) {
    fail(what + " has an unsupported type" +
         expected_got("F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0",
                      "number " + std::to_string(type)));
  }
  tensor.cols = tensor.shape[0];
  tensor.rows = elements / tensor.cols;
  if (tensor.cols % layout->elements != 0) {
    fail(what + ", row length" +
         expected_got("a multiple of " + std::to_string(layout->elements),
                      std::to_string(tensor.cols)));
  }
  // Divided first: elements fit, but for F32 bytes might not.
  const std::int64_t blocks = tensor.cols / layout->elements;
  if (blocks > std::numeric_limits<std::int64_t>::max() / layout->bytes) {
    fail(what + ", row length" +
         expected_got("one that fits in memory", std::to_string(tensor.cols)));
  }
  tensor.row_bytes = blocks * layout->bytes;
  return tensor;
}

void GgufFile::read_tensors(Cursor& cursor, std::uint64_t count) {
  const std::uint64_t alignment = get_u32("general.alignment", kDefaultAlignment);
  if (!std::has_single_bit(alignment) || alignment < 8) {
    fail("general.alignment" + expected_got("a power of two from 8 up", std::to_string(alignment)));
  }
  std::vector<std::pair<Tensor, std::uint64_t>> found;  // with the offset in the data section
  found.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    Tensor tensor = read_tensor_info(cursor);
    const auto offset = cursor.read<std::uint64_t>("a tensor offset");
    found.emplace_back(std::move(tensor), offset);
  }

  const std::uint64_t start = (cursor.position() + alignment - 1) / alignment * alignment;
  const std::uint64_t available = start < bytes_.size() ? bytes_.size() - start : 0;
  for (auto& [tensor, offset] : found) {
    const std::string what = "tensor " + quoted(tensor.name);
    if (offset % alignment != 0) {
      fail(what + ", offset" +
           expected_got("a multiple of " + std::to_string(alignment), std::to_string(offset)));
    }
    const auto row_bytes = static_cast<std::uint64_t>(tensor.row_bytes);
    const auto rows = static_cast<std::uint64_t>(tensor.rows);
    if (offset > available || rows > (available - offset) / row_bytes) {
      fail(what + " reaches past the end of the file" +
           expected_got(std::to_string(rows) + " rows of " + std::to_string(row_bytes) +
                            " bytes at " + std::to_string(offset),
                        std::to_string(available) + " bytes of tensor data"));
    }
    tensor.data = bytes_.data() + start + offset;
    const std::string_view name = tensor.name;
    if (!tensors_.emplace(name, std::move(tensor)).second) fail(what + " is there twice");
  }
}

const GgufFile::Value& GgufFile::value(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) fail("metadata " + quoted(key) + " is missing");
  return found->second;
}

const GgufFile::Value& GgufFile::scalar(std::string_view key) const {
  const Value& found = value(key);
  if (found.is_array) fail_type(key, "a single value", found);
  return found;
}

const GgufFile::Value& GgufFile::array(std::string_view key) const {
  const Value& found = value(key);
  if (!found.is_array) fail_type(key, "an array", found);
  return found;
}

std::int64_t GgufFile::decode_int(std::string_view key, const Value& value,
                                  std::uint64_t index) const {
  const std::uint64_t size = kValueTypes[static_cast<std::size_t>(value.type)].bytes;
  const std::byte* at = value.data + index * size;
  switch (value.type) {
    case ValueType::u8:
      return load<std::uint8_t>(at);
    case ValueType::i8:
      return load<std::int8_t>(at);
    case ValueType::u16:
      return load<std::uint16_t>(at);
    case ValueType::i16:
      return load<std::int16_t>(at);
    case ValueType::u32:
      return load<std::uint32_t>(at);
    case ValueType::i32:
      return load<std::int32_t>(at);
    case ValueType::i64:
      return load<std::int64_t>(at);
    case ValueType::u64: {
      const auto wide = load<std::uint64_t>(at);
      if (!std::in_range<std::int64_t>(wide)) {
        fail("metadata " + quoted(key) + expected_got("less than 2^63", std::to_string(wide)));
      }
      return static_cast<std::int64_t>(wide);
    }
    default:
      fail_type(key, "an integer", value);
  }
}

std::uint32_t GgufFile::get_u32(std::string_view key) const {
  const std::int64_t got = decode_int(key, scalar(key), 0);
  if (!std::in_range<std::uint32_t>(got)) {
    fail("metadata " + quoted(key) + expected_got("0 to 4294967295", std::to_string(got)));
  }
  return static_cast<std::uint32_t>(got);
}

float GgufFile::get_f32(std::string_view key) const {
  const Value& found = scalar(key);
  if (found.type == ValueType::f32) return load<float>(found.data);
  if (found.type == ValueType::f64) return static_cast<float>(load<double>(found.data));
  fail_type(key, "a float", found);
}

bool GgufFile::get_bool(std::string_view key) const {
  const Value& found = scalar(key);
  if (found.type != ValueType::boolean) fail_type(key, "a bool", found);
  return load<std::uint8_t>(found.data) != 0;
}

std::string_view GgufFile::get_string(std::string_view key) const {
  const Value& found = scalar(key);
  if (found.type != ValueType::string) fail_type(key, "a string", found);
  return load_string(found.data);
}

std::uint32_t GgufFile::get_u32(std::string_view key, std::uint32_t fallback) const {
  return has(key) ? get_u32(key) : fallback;
}

float GgufFile::get_f32(std::string_view key, float fallback) const {
  return has(key) ? get_f32(key) : fallback;
}

bool GgufFile::get_bool(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : fallback;
}

std::string_view GgufFile::get_string(std::string_view key, std::string_view fallback) const {
  return has(key) ? get_string(key) : fallback;
}

std::vector<std::string_view> GgufFile::get_strings(std::string_view key) const {
  const Value& found = array(key);
  if (found.type != ValueType::string) fail_type(key, "an array of strings", found);
  std::vector<std::string_view> strings;
  strings.reserve(found.count);
  const std::byte* at = found.data;
  for (std::uint64_t i = 0; i < found.count; ++i) {
    strings.push_back(load_string(at));
    at += 8 + strings.back().size();
  }
  return strings;
}

std::vector<std::int64_t> GgufFile::get_ints(std::string_view key) const {
  const Value& found = array(key);
  std::vector<std::int64_t> ints;
  ints.reserve(found.count);
  for (std::uint64_t i = 0; i < found.count; ++i) ints.push_back(decode_int(key, found, i));
  return ints;
}

const Tensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const Tensor& GgufFile::tensor(std::string_view name) const {
  const Tensor* found = find_tensor(name);
  if (!found) fail("tensor " + quoted(name) + " is missing");
  return *found;
}

const Tensor& GgufFile::tensor(std::string_view name, std::int64_t rows, std::int64_t cols) const {
  const Tensor& found = tensor(name);
  if (found.rows != rows || found.cols != cols) {
    fail("tensor " + quoted(name) + ", shape" +
         expected_got(shape_text(rows, cols), shape_text(found.rows, found.cols)));
  }
  return found;
}

void GgufFile::fail_type(std::string_view key, std::string_view expected, const Value& got) const {
  const std::string_view name = kValueTypes[static_cast<std::size_t>(got.type)].name;
  fail("metadata " + quoted(key) +
       expected_got(expected, (got.is_array ? "an array of " : "") + std::string(name)));
}

void GgufFile::fail(const std::string& what) const {
  throw std::runtime_error(name_ + ": " + what);
}

}  // namespace llama
