// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <tersekv/safetensors.hpp>

#include "written_safetensors.hpp"

// Damaged safetensors files of every kind are an exception and nothing worse.

namespace {

using namespace tersekv;
using namespace written;
using namespace std::string_literals;

/// Opens the file and reads the surrogates; true if that ended in std::runtime_error.
bool is_damaged(const std::string& bytes) {
  const TemporaryFile saved(bytes);
  try {
    const SurrogateSet set(saved.path());
    return false;
  } catch (const std::runtime_error& error) {
    return std::string(error.what()).find("expected") != std::string::npos;
  }
}

TEST_CASE("safetensors: a file cut short anywhere is damaged") {
  const std::string whole = linear_file("F32");
  REQUIRE_FALSE(is_damaged(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK(is_damaged(whole.substr(0, size)));
  }
}

TEST_CASE("safetensors: a missing file is an error that names it") {
  try {
    const SafetensorsFile file("/nowhere/at-all.safetensors");
    FAIL("opened");
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()).find("/nowhere/at-all") != std::string::npos);
  }
  CHECK_THROWS_AS(SafetensorsFile(std::filesystem::temp_directory_path().string()),
                  std::runtime_error);
}

TEST_CASE("safetensors: whatever single byte changes, nothing but an exception comes of it") {
  const std::string whole = linear_file("F32");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x02, 0x10, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      const TemporaryFile saved(bytes);
      try {
        const SurrogateSet set(saved.path());
        CHECK(set.layer(0).num_kv_heads() == 2);
      } catch (const std::runtime_error&) {
      } catch (const std::invalid_argument&) {  // extents that do not fit together
      }
    }
  }
  SUCCEED("no crash, no other exception");
}

TEST_CASE("safetensors: headers of absurd length are damaged") {
  const std::string rest = linear_file("F32").substr(8);
  for (const std::uint64_t size :
       {std::uint64_t(0), std::uint64_t(1), std::uint64_t(rest.size() + 1), std::uint64_t(1) << 31,
        std::uint64_t(1) << 32, std::uint64_t(1) << 63, ~std::uint64_t(0), ~std::uint64_t(7)}) {
    CAPTURE(size);
    CHECK(is_damaged(little_endian(size, 8) + rest));
  }
}

/// A file whose `layers.0.bias` is described by `entry`.
std::string with_bias(const std::string& entry) {
  return file_of(
      "{\"layers.0.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
      "\"layers.0.bias\":" +
          entry + "}",
      std::string(32, '\0'));
}

TEST_CASE("safetensors: descriptions that do not fit the data are damaged") {
  REQUIRE_FALSE(is_damaged(with_bias(R"({"dtype":"F32","shape":[2],"data_offsets":[24,32]})")));
  for (
      const char* entry : {
          R"({"dtype":"F32","shape":[2],"data_offsets":[24,33]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[32,24]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[40,48]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[24]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[24.0,32.0]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":["24","32"]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":{"0":24,"1":32}})",
          R"({"dtype":"F32","shape":[2],"data_offsets":null})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551616]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,8]})",
          R"({"dtype":"F32","shape":[2]})",
          R"({"dtype":"F32","shape":[3],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":[0],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":[-2],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[24,24]})",
          R"({"dtype":"F32","shape":[1,2],"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":2,"data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":"2","data_offsets":[24,32]})",
          R"({"dtype":"F32","shape":null,"data_offsets":[24,28]})",
          R"({"dtype":"F32","data_offsets":[24,28]})",
          R"({"dtype":"F16","shape":[2],"data_offsets":[24,32]})",
          R"({"dtype":"F16","shape":[1],"data_offsets":[24,27]})",
          R"({"dtype":"F64","shape":[1],"data_offsets":[24,32]})",
          R"({"dtype":"I8","shape":[8],"data_offsets":[24,32]})",
          R"({"dtype":"f32","shape":[2],"data_offsets":[24,32]})",
          R"({"dtype":32,"shape":[2],"data_offsets":[24,32]})",
          R"({"dtype":["F32"],"shape":[2],"data_offsets":[24,32]})",
          R"({"shape":[2],"data_offsets":[24,32]})",
          R"([])",
          R"(null)",
          R"(7)",
          R"("F32")",
          R"({})",
      }) {
    CAPTURE(entry);
    CHECK(is_damaged(with_bias(entry)));
  }
}

TEST_CASE("safetensors: a shape whose product wraps around to the right size is damaged") {
  for (const char* shape :
       {"[9223372036854775809,2]", "[2,9223372036854775809]", "[4294967296,4294967296]",
        "[18446744073709551615,18446744073709551614]"}) {
    CAPTURE(shape);
    Builder builder;
    builder.add("x", "F32", shape, std::string(8, '\0'));
    const TemporaryFile saved(builder.file());
    CHECK_THROWS_AS(SafetensorsFile(saved.path()).tensor("x"), std::runtime_error);
  }
}

TEST_CASE("safetensors: a type that is not read matters only to who asks for it") {
  Builder builder;
  builder.add("layers.0.weight", "F32", "[2,3]", bytes_of<float>(kWeight));
  builder.add("layers.0.bias", "F32", "[2]", bytes_of<float>(kBias));
  builder.add("something", "I64", "[1]", std::string(8, 'x'));
  CHECK_FALSE(is_damaged(builder.file()));
}

TEST_CASE("safetensors: headers that are no JSON object are damaged") {
  for (const std::string header :
       {"", " ", "null", "[]", "7", "\"layers.0.weight\"", "{", "{}", "}", "{\"a\":}", "{\"a\" 1}",
        "{\"a\":1}{\"b\":2}", "\xff\xfe{}", "{\"\xc3\x28\":1}", "{'a':1}"}) {
    CAPTURE(header);
    CHECK(is_damaged(file_of(header, std::string(32, '\0'))));
  }
}

TEST_CASE("safetensors: garbage nested a million deep is damaged, not a stack overflow") {
  const int depth = 1'000'000;
  const std::string open(depth, '['), close(depth, ']');
  CHECK(is_damaged(file_of(open, "")));
  CHECK(is_damaged(file_of(open + close, "")));
  for (const std::string field : {"dtype", "shape", "data_offsets"}) {
    CAPTURE(field);
    std::string entry = R"({"dtype":"F32","shape":[2],"data_offsets":[24,32]})";
    const std::size_t at = entry.find(field) + field.size() + 2;
    const std::size_t end = entry[at] == '[' ? entry.find(']', at) + 1 : entry.find(',', at);
    CHECK(is_damaged(with_bias(entry.replace(at, end - at, open + close))));
  }
}

TEST_CASE("safetensors: a name that is there twice is damaged") {  // the format forbids it
  const std::string bias = R"({"dtype":"F32","shape":[2],"data_offsets":[24,32]})";
  CHECK(is_damaged(with_bias(bias + ",\"layers.0.bias\":" + bias)));
}

TEST_CASE("safetensors: layers that do not fit together are refused") {
  const auto refused = [](const std::string& first_shape, const std::string& second_shape,
                          std::size_t first_biases = 2) {
    Builder builder;
    builder.add("layers.0.0.weight", "F32", first_shape, std::string(24, '\0'));
    builder.add("layers.0.0.bias", "F32", '[' + std::to_string(first_biases) + ']',
                std::string(4 * first_biases, '\0'));
    builder.add("layers.0.2.weight", "F32", second_shape, std::string(24, '\0'));
    builder.add("layers.0.2.bias", "F32", "[3]", std::string(12, '\0'));
    const TemporaryFile saved(builder.file());
    try {
      const SurrogateSet set(saved.path());
      return "";
    } catch (const std::invalid_argument&) {  // layers, as the file itself is sound
      return "layers";
    } catch (const std::runtime_error&) {
      return "file";
    }
  };
  CHECK(refused("[2,3]", "[3,2]") == ""s);
  CHECK(refused("[3,2]", "[3,2]", 3) == "layers"s);
  CHECK(refused("[3,2]", "[3,2]") == "file"s);
  CHECK(refused("[2,3]", "[2,3]") == "file"s);
  CHECK(refused("[6]", "[3,2]") == "file"s);
  CHECK(refused("[2,3,1]", "[3,2]") == "file"s);
  CHECK(is_damaged(file_of("{\"layers.1.weight\":{}}", "")));
}

TEST_CASE("safetensors: a layer that is missing between others is an error that names it") {
  const auto message = [](const std::vector<std::string>& layers) -> std::string {
    Builder builder;
    for (const std::string& layer : layers) {
      builder.add("layers." + layer + ".weight", "F32", "[1,1]", std::string(4, '\0'));
      builder.add("layers." + layer + ".bias", "F32", "[1]", std::string(4, '\0'));
    }
    const TemporaryFile saved(builder.file());
    try {
      return std::to_string(SurrogateSet(saved.path()).size());
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  };
  CHECK(message({"0", "1", "2"}) == "3");
  CHECK(message({"0", "2"}).find("no layers.1.weight") != std::string::npos);
  CHECK(message({"0", "1", "12"}).find("no layers.2.weight") != std::string::npos);
  for (const std::string odd : {"x", "-1", "99999999999999999999", "18446744073709551616"}) {
    CHECK(message({"0", odd}).find("got layers." + odd) != std::string::npos);
  }
  // Nor is a part of a layer left out.
  CHECK(message({"0.0", "0.2"}) == "1");
  CHECK(message({"0.0", "0.2", "0.4"}).find("of layer 0, got layers.0.4") != std::string::npos);
  CHECK(message({"0.0", "0.2", "0"}).find("of layer 0, got layers.0.") != std::string::npos);
}

TEST_CASE("safetensors: a folder is not a file that is too short") {
  try {
    SurrogateSet("/");
    FAIL("read a folder");
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    CHECK(message.find("expected a readable file") != std::string::npos);
  }
}

}  // namespace
