// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tersekv/safetensors.hpp>

#include "written_safetensors.hpp"

// A safetensors header describes all of the data, each part once, and in the format's words.

namespace {

using namespace tersekv;
using namespace written;
using namespace std::string_literals;

TEST_CASE(
    "safetensors: what describes a tensor is a list of numbers, two offsets, and there once") {
  const auto damaged = [](const std::string& entry) {
    const TemporaryFile saved(file_of("{\"x\":" + entry + "}", std::string(4, '\0')));
    try {
      return SafetensorsFile(saved.path()).tensor("x").shape.empty() ? "a scalar" : "read";
    } catch (const std::runtime_error&) {
      return "damaged";
    }
  };
  CHECK(damaged(R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})") == "a scalar"s);
  CHECK(damaged(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})") == "read"s);
  for (const char* entry : {
           R"({"dtype":"F32","data_offsets":[0,4]})",
           R"({"dtype":"F32","shape":null,"data_offsets":[0,4]})",
           R"({"dtype":"F32","shape":{},"data_offsets":[0,4]})",
           R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})",
           R"({"dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,4]})",
           R"({"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[4,4]})",
       }) {
    CAPTURE(entry);
    CHECK(damaged(entry) == "damaged"s);
  }
}

TEST_CASE("safetensors: data that the header does not speak of is damage, before memory is taken") {
  const TemporaryFile longer(linear_file("F32") + std::string(1, '\0'));
  CHECK_THROWS_AS(SafetensorsFile(longer.path()), std::runtime_error);
  const auto two = [](const char* first, const char* second) {
    const auto entry = [](const char* offsets) {
      return R"({"dtype":"F32","shape":[1],"data_offsets":)" + std::string(offsets) + "}";
    };
    const TemporaryFile saved(file_of(
        R"({"__metadata__":{"format":"pt"},"x":)" + entry(first) + ",\"y\":" + entry(second) + "}",
        std::string(8, '\0')));
    return SafetensorsFile(saved.path()).tensor("x").data.size();
  };
  CHECK(two("[0,4]", "[4,8]") == 1);
  CHECK(two("[4,8]", "[0,4]") == 1);
  CHECK_THROWS_AS(two("[0,4]", "[0,8]"), std::runtime_error);
  CHECK_THROWS_AS(two("[0,3]", "[4,8]"), std::runtime_error);
  CHECK_THROWS_AS(two("[4,8]", "[8,8]"), std::runtime_error);
  const TemporaryFile saved(file_of("{}", ""));
  std::error_code none;
  std::filesystem::resize_file(saved.path(), std::uintmax_t{1} << 40, none);
  if (none) SKIP("no room for a file of holes");
  CHECK_THROWS_AS(SafetensorsFile(saved.path()), std::runtime_error);
}

TEST_CASE("safetensors: very many layers are read") {
  constexpr int kLayers = 20000;  // half a minute, if each name is looked for among all
  Builder builder;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    builder.add(prefix + ".weight", "F32", "[1,1]", std::string(4, '\0'));
    builder.add(prefix + ".bias", "F32", "[1]", std::string(4, '\0'));
  }
  const TemporaryFile saved(builder.file());
  CHECK(SurrogateSet(saved.path()).size() == kLayers);
}

}  // namespace
