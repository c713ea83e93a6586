// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>

#include "gguf.hpp"
#include "gguf_builder.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using llama::GgufFile;
using llama_test::Bytes;
using llama_test::GgufBuilder;
using File = std::vector<std::byte>;

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

// Metadata of every type, and tensors named "matrix" (F32, 3 rows of 4) and "quantised" (Q8_0).
GgufBuilder example() {
  GgufBuilder builder;
  builder.value("u8", llama_test::u8, std::uint8_t{200})
      .value("i8", llama_test::i8, std::int8_t{-3})
      .value("u16", llama_test::u16, std::uint16_t{60000})
      .value("i16", llama_test::i16, std::int16_t{300})
      .value("u32", llama_test::u32, std::uint32_t{4000000000})
      .value("i32", llama_test::i32, std::int32_t{70000})
      .value("u64", llama_test::u64, kHuge)
      .value("i64", llama_test::i64, std::int64_t{5000000000})
      .value("f32", llama_test::f32, 1.5f)
      .value("f64", llama_test::f64, 2.25)
      .value("bool", llama_test::boolean, std::uint8_t{1})
      .text("text", "hello")
      .texts("texts", {"a", "", "ccc"})
      .ints("ints", {3, -1, 4});
  Bytes matrix;
  for (int i = 0; i < 12; ++i) matrix.put(static_cast<float>(i));
  builder.tensor("matrix", {4, 3}, 0, matrix.data);
  return builder.tensor("quantised", {32}, 8, File(34));
}

// In a buffer of exactly its size, so that the address sanitizer sees any read beyond it.
GgufFile parse(const File& bytes) { return GgufFile(bytes, "tiny.gguf"); }

// Where `text` ends in the file, the first time it is there.
std::size_t after(const File& file, std::string_view text) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  const std::size_t at = all.find(text);
  REQUIRE(at != std::string_view::npos);
  return at + text.size();
}

template <class T>
File patched(File file, std::size_t at, T value) {
  REQUIRE(at + sizeof(T) <= file.size());
  std::memcpy(file.data() + at, &value, sizeof(T));
  return file;
}

void check_refused(const File& file, const std::string& what) {
  CHECK_THROWS_MATCHES(parse(file), std::runtime_error,
                       MessageMatches(ContainsSubstring(what) && ContainsSubstring("tiny.gguf: ")));
}

// Reads everything a file that was accepted gives access to.
std::uint64_t touch_all(const GgufFile& file) {
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    for (std::int64_t i = 0; i < tensor.rows * tensor.row_bytes; ++i) {
      sum += static_cast<std::uint8_t>(tensor.data[i]);
    }
  }
  const auto try_to = [&](auto&& get) {
    try {
      sum += get();
    } catch (const std::runtime_error&) {  // missing, or of another type, after the damage
    }
  };
  for (const char* key : {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64",
                          "bool", "text", "texts", "ints"}) {
    try_to([&] { return file.get_u32(key); });
    try_to([&] { return file.get_f32(key) > 0; });
    try_to([&] { return file.get_bool(key); });
    try_to([&] { return file.get_string(key).size(); });
    try_to([&] { return file.get_ints(key).size(); });
    try_to([&] {
      std::size_t total = 0;
      for (const std::string_view text : file.get_strings(key)) total += std::string(text).size();
      return total;
    });
  }
  return sum;
}

// Whether a damaged file is refused, in one line; anything but std::runtime_error fails the test.
bool is_refused(const File& file) {
  try {
    touch_all(parse(file));
    return false;
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    CHECK(message.starts_with("tiny.gguf: "));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 300);
    return true;
  }
}

}  // namespace

TEST_CASE("gguf metadata is read by type") {
  const File bytes = example().build();
  const GgufFile file = parse(bytes);
  CHECK(file.version() == 3);
  CHECK(file.get_u32("u8") == 200);
  CHECK(file.get_u32("u16") == 60000);
  CHECK(file.get_u32("i16") == 300);
  CHECK(file.get_u32("u32") == 4000000000);
  CHECK(file.get_u32("i32") == 70000);
  CHECK(file.get_f32("f32") == 1.5f);
  CHECK(file.get_f32("f64") == 2.25f);
  CHECK(file.get_bool("bool"));
  CHECK(file.get_string("text") == "hello");
  CHECK(file.get_strings("texts") == std::vector<std::string_view>{"a", "", "ccc"});
  CHECK(file.get_ints("ints") == std::vector<std::int64_t>{3, -1, 4});
  CHECK(file.has("text"));
  CHECK_FALSE(file.has("tex"));
  CHECK(file.get_u32("none", 7) == 7);
  CHECK(file.get_f32("none", 0.5f) == 0.5f);
  CHECK(file.get_bool("none", true));
  CHECK(file.get_string("none", "fallback") == "fallback");
}

TEST_CASE("gguf metadata of another type or range is an error that says so") {
  const File bytes = example().build();
  const GgufFile file = parse(bytes);
  const auto says = [](const std::string& what) { return MessageMatches(ContainsSubstring(what)); };
  using Error = std::runtime_error;
  CHECK_THROWS_MATCHES(file.get_u32("none"), Error, says("metadata 'none' is missing"));
  CHECK_THROWS_MATCHES(file.get_u32("i8"), Error, says("got -3"));
  CHECK_THROWS_MATCHES(file.get_u32("i64"), Error, says("got 5000000000"));
  CHECK_THROWS_MATCHES(file.get_u32("u64"), Error, says("expected less than 2^63"));
  CHECK_THROWS_MATCHES(file.get_u32("f32"), Error, says("expected an integer, got f32"));
  CHECK_THROWS_MATCHES(file.get_u32("ints"), Error, says("a single value, got an array of i32"));
  CHECK_THROWS_MATCHES(file.get_f32("u32"), Error, says("expected a float, got u32"));
  CHECK_THROWS_MATCHES(file.get_bool("u8", false), Error, says("expected a bool, got u8"));
  CHECK_THROWS_MATCHES(file.get_string("u8"), Error, says("expected a string, got u8"));
  CHECK_THROWS_MATCHES(file.get_strings("text"), Error, says("expected an array, got string"));
  CHECK_THROWS_MATCHES(file.get_strings("ints"), Error, says("expected an array of strings"));
  CHECK_THROWS_MATCHES(file.get_ints("texts"), Error, says("got an array of string"));
}

TEST_CASE("gguf tensors are found with shape and content") {
  for (const std::uint32_t version : {2u, 3u}) {
    const File bytes = example().build(version);
    const GgufFile file = parse(bytes);
    const llama::Tensor& matrix = file.tensor("matrix");
    CHECK(matrix.type == llama::TensorType::f32);
    CHECK(matrix.shape == std::vector<std::int64_t>{4, 3});
    CHECK(matrix.rows == 3);
    CHECK(matrix.cols == 4);
    CHECK(matrix.row_bytes == 16);
    float last = 0;
    std::memcpy(&last, matrix.data + 2 * matrix.row_bytes + 12, sizeof(last));
    CHECK(last == 11.0f);
    CHECK(file.tensor("quantised").rows == 1);
    CHECK(file.tensor("quantised").row_bytes == 34);
    CHECK(&file.tensor("matrix", 3, 4) == &matrix);
    CHECK(file.find_tensor("none") == nullptr);
    CHECK_THROWS_MATCHES(file.tensor("none"), std::runtime_error,
                         MessageMatches(ContainsSubstring("tensor 'none' is missing")));
    CHECK_THROWS_MATCHES(file.tensor("matrix", 4, 3), std::runtime_error,
                         MessageMatches(ContainsSubstring("expected 4 x 3, got 3 x 4")));
  }
}

TEST_CASE("gguf files are mapped from disk, and say why they cannot be") {
  const auto folder = std::filesystem::temp_directory_path() / "tersekv_test_gguf";
  std::filesystem::create_directories(folder);
  const auto path = folder / "tiny.gguf";
  const File bytes = example().build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  GgufFile opened(path);
  const GgufFile moved = std::move(opened);
  CHECK(moved.get_string("text") == "hello");
  CHECK(touch_all(moved) > 0);

  const auto says = [](const std::string& what) { return MessageMatches(ContainsSubstring(what)); };
  CHECK_THROWS_MATCHES(GgufFile(folder / "none"), std::runtime_error, says("No such file"));
  CHECK_THROWS_MATCHES(GgufFile(folder), std::runtime_error, says("expected a regular file"));
  std::ofstream(folder / "empty").close();
  CHECK_THROWS_MATCHES(GgufFile(folder / "empty"), std::runtime_error, says("is empty"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("gguf files cut short anywhere are refused") {
  const File file = example().build();
  CHECK_FALSE(is_refused(file));
  for (std::size_t size = 0; size < file.size(); ++size) {
    CAPTURE(size);
    CHECK(is_refused(File(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))));
  }
}

TEST_CASE("gguf files with damaged bytes are refused or read within their bounds") {
  const File file = example().build();
  int refused = 0;
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (const std::uint8_t value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      refused += is_refused(patched(file, at, value));
    }
  }
  CHECK(refused > 100);

  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    File damaged = file;
    for (int change = 0; change < 4; ++change) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    }
    is_refused(damaged);
  }
}

TEST_CASE("gguf headers that lie are refused with the reason") {
  const File file = example().build();
  check_refused(patched(file, 0, std::uint32_t{0}), "does not begin with 'GGUF'");
  check_refused(patched(file, 4, std::uint32_t{1}), "expected 2 or 3, little-endian, got 1");
  check_refused(patched(file, 4, std::uint32_t{0x03000000}), "got 50331648");
  check_refused(patched(file, 8, kHuge), "too many tensors");
  check_refused(patched(file, 8, std::uint64_t{3}), "tiny.gguf");
  check_refused(patched(file, 16, kHuge), "too many metadata values");

  check_refused(patched(file, 24, kHuge), "the file ends inside a metadata key");
  check_refused(patched(file, after(file, "text"), std::uint32_t{13}), "unknown type");
  check_refused(patched(file, after(file, "text") + 4, kHuge), "the file ends inside");
  check_refused(patched(file, after(file, "ints"), std::uint32_t{99}), "unknown type");
  check_refused(patched(file, after(file, "ints") + 4, std::uint32_t{9}), "array of arrays");
  check_refused(patched(file, after(file, "ints") + 8, kHuge), "too many elements");
  check_refused(patched(file, after(file, "ints") + 8, kHuge / 4 + 2), "too many elements");
  check_refused(patched(file, after(file, "texts") + 8, kHuge), "too many strings");
  check_refused(patched(file, after(file, "texts") + 16, kHuge - 7), "the file ends inside");
  check_refused(patched(file, after(file, "i8") - 2, 'u'), "metadata 'u8' is there twice");
}

TEST_CASE("gguf tensor descriptions that lie are refused with the reason") {
  const File file = example().build();
  const std::size_t rank = after(file, "matrix");
  const std::size_t rows = rank + 12, type = rank + 20, offset = rank + 24;
  check_refused(patched(file, rank, std::uint32_t{0}), "expected 1 to 4, got 0");
  check_refused(patched(file, rank, std::uint32_t{5}), "expected 1 to 4, got 5");
  check_refused(patched(file, rows, std::uint64_t{0}), "bad dimension");
  check_refused(patched(file, rows, kHuge), "bad dimension");
  check_refused(patched(file, rows, kHuge / 4), "bad dimension");
  check_refused(patched(file, rows, kHuge / 8), "past the end");
  check_refused(patched(file, rows, std::uint64_t{1} << 60), "past the end");  // 2^64 bytes
  check_refused(patched(patched(file, rank + 4, kHuge / 4), rows, std::uint64_t{1}),
                "expected one that fits in memory");
  check_refused(patched(file, rows, std::uint64_t{1000}), "past the end");
  check_refused(patched(file, type, std::uint32_t{14}), "unsupported type");
  check_refused(patched(file, type, std::uint32_t{8}), "expected a multiple of 32, got 4");
  check_refused(patched(file, offset, std::uint64_t{8}), "offset: expected a multiple of 32");
  check_refused(patched(file, offset, kHuge - 31), "past the end");
  check_refused(patched(file, offset, std::uint64_t{1} << 40), "past the end");

  const File content(16);
  const auto twice = GgufBuilder().tensor("w", {4}, 0, content).tensor("w", {4}, 0, content);
  check_refused(twice.build(), "tensor 'w' is there twice");
  for (const std::uint32_t alignment : {0u, 4u, 24u}) {
    const auto builder = GgufBuilder()
                             .value("general.alignment", llama_test::u32, alignment)
                             .tensor("w", {4}, 0, content);
    check_refused(builder.build(), "general.alignment: expected a power of two from 8 up");
  }
  const auto wide = GgufBuilder().value("general.alignment", llama_test::u32, 1u << 31);
  check_refused(GgufBuilder(wide).tensor("w", {4}, 0, content).build(), "past the end");
}

TEST_CASE("gguf names with odd bytes are quoted safely in messages") {
  const File content(16);
  const std::string name = "line\nbreak\x1b" + std::string(500, 'x');
  check_refused(GgufBuilder().tensor(name, {5}, 0, content).build(), "'line?break?xxx");
}
