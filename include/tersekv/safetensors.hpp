// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads surrogates from safetensors files. Apart from <tersekv/tersekv.hpp>, as it needs
// nlohmann_json for the files' headers.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tersekv/element.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/surrogate.hpp"

namespace tersekv {

/// The tensors of a safetensors file, converted to float. Types: F32, F16, BF16; others are an
/// error only when asked for. Every length and offset is checked against the file before use;
/// throws std::runtime_error for a file that is missing or damaged, or for a tensor that is, when
/// it is asked for.
class SafetensorsFile {
 public:
  struct Tensor {
    std::vector<Index> shape;
    std::vector<float> data;
  };

  explicit SafetensorsFile(const std::string& path) : path_(path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) fail("a readable file", "none");
    const auto size = static_cast<std::uint64_t>(file.tellg());
    unsigned char prefix[8] = {};
    if (size < sizeof prefix) fail("at least 8 bytes", std::to_string(size));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(prefix), sizeof prefix);
    if (!file) fail("a readable file", "a read error");  // as of a directory
    std::uint64_t header_size = 0;
    for (int i = 7; i >= 0; --i) header_size = header_size << 8 | prefix[i];
    if (header_size > size - sizeof prefix || header_size > kLargestHeader) {
      fail("a header within the file", std::to_string(header_size) + " bytes");
    }
    std::string text(header_size, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file) fail("a readable file", "a read error");
    header_ = nlohmann::json::parse(text, nullptr, false);
    if (!header_.is_object()) fail("a JSON object as header", "something else");
    RepeatedNames names;
    nlohmann::json::sax_parse(text, &names);
    if (names.any()) fail("every name once", "one twice");
    // Only now is memory taken for the data.
    const std::uint64_t data_size = size - sizeof prefix - header_size;
    check_described(data_size);
    data_.resize(data_size);
    file.read(reinterpret_cast<char*>(data_.data()), static_cast<std::streamsize>(data_.size()));
    if (!file) fail("a readable file", "a read error");
  }

  bool contains(const std::string& name) const { return header_.contains(name); }
  /// Of all tensors (and "__metadata__", where there is any), in alphabetical order.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, entry] : header_.items()) result.push_back(name);
    return result;
  }

  Tensor tensor(const std::string& name) const {
    const auto found = header_.find(name);
    if (found == header_.end()) fail("tensor " + name, "none of that name");
    const auto& entry = *found;
    const auto [begin, end] = range(name, entry);
    Tensor result;
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : numbers(name, entry, "shape")) {
      const bool counted = extent == 0 || elements <= (end - begin) / extent;
      if (!counted || extent > std::uint64_t{std::numeric_limits<Index>::max()}) {
        fail(name + " of " + std::to_string(end - begin) + " bytes", "a larger shape");
      }
      elements *= extent;
      result.shape.push_back(static_cast<Index>(extent));
    }
    const auto dtype = entry.find("dtype");
    const bool named = dtype != entry.end() && dtype->is_string();
    const std::string type = named ? dtype->template get<std::string>() : "none";
    const std::byte* from = data_.data() + begin;
    const std::uint64_t bytes = end - begin;
    if (type == "F32") {
      convert<float>(name, from, bytes, elements, result.data);
    } else if (type == "F16") {
      convert<Half>(name, from, bytes, elements, result.data);
    } else if (type == "BF16") {
      convert<BFloat16>(name, from, bytes, elements, result.data);
    } else {
      fail(name + " of type F32, F16 or BF16", type);
    }
    return result;
  }

 private:
  /// Looks for a name that an object has twice, of which the parser keeps the last. (With a
  /// callback that parser would notice, too, but take time with the square of the number of
  /// tensors.)
  class RepeatedNames : public nlohmann::json_sax<nlohmann::json> {
   public:
    bool any() const { return any_; }
    bool key(string_t& name) override {
      any_ |= !names_.back().insert(name).second;
      return !any_;
    }
    bool start_object(std::size_t) override {
      names_.emplace_back();
      return true;
    }
    bool end_object() override {
      names_.pop_back();
      return true;
    }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
      return false;
    }

   private:
    std::vector<std::set<std::string>> names_;  // of the objects around, the innermost last
    bool any_ = false;
  };
  static constexpr std::uint64_t kLargestHeader = 100'000'000;  // the format's own limit

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw std::runtime_error("tersekv: " + path_ + ": expected " + expected + ", got " + got);
  }
  /// A list in a tensor's description.
  std::vector<std::uint64_t> numbers(const std::string& name, const nlohmann::json& entry,
                                     const char* key) const {
    const auto all_numbers = [](const nlohmann::json& list) {
      return list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& each) {
               return each.is_number_unsigned();
             });
    };
    if (!entry.is_object() || !entry.contains(key) || !all_numbers(entry[key])) {
      fail("numbers in " + std::string(key) + " of " + name, "something else");
    }
    return entry[key].get<std::vector<std::uint64_t>>();
  }
  /// First and behind the last of a tensor's bytes.
  std::pair<std::uint64_t, std::uint64_t> range(const std::string& name,
                                                const nlohmann::json& entry) const {
    const auto offsets = numbers(name, entry, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      fail("a first and a last offset of " + name, "others");
    }
    return {offsets[0], offsets[1]};
  }
  /// The format has tensors one after the other, and nothing between or behind them.
  void check_described(std::uint64_t data_size) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const auto& [name, entry] : header_.items()) {
      if (name != "__metadata__") ranges.push_back(range(name, entry));
    }
    std::sort(ranges.begin(), ranges.end());
    std::uint64_t described = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != described) {
        fail("a tensor that begins at byte " + std::to_string(described), std::to_string(begin));
      }
      described = end;
    }
    if (described != data_size) {
      fail(std::to_string(described) + " bytes of data, as the header says",
           std::to_string(data_size));
    }
  }
  template <class T>
  void convert(const std::string& name, const std::byte* from, std::uint64_t bytes,
               std::uint64_t elements, std::vector<float>& out) const {
    if (bytes / sizeof(T) != elements || bytes % sizeof(T) != 0) {
      fail(name + " of " + std::to_string(elements) + " elements",
           std::to_string(bytes) + " bytes");
    }
    out.resize(elements);
    for (std::uint64_t i = 0; i < elements; ++i) {
      T element;
      std::memcpy(&element, from + i * sizeof(T), sizeof(T));
      out[i] = to_float(element);
    }
  }

  std::string path_;
  nlohmann::json header_;
  std::vector<std::byte> data_;
};

/// The surrogates of a model, one per layer, with the weights they borrow.
class SurrogateSet {
 public:
  /// Reads `layers.{i}.weight`, `.bias` (linear) or `layers.{i}.0.*`, `layers.{i}.2.*` (MLP), the
  /// names of the published checkpoints, for i from 0 without a gap. Throws std::runtime_error for
  /// a damaged file, a bias that does not fit its weight or a layer's tensor of another name,
  /// std::invalid_argument for layers that do not fit.
  explicit SurrogateSet(const std::string& path) {
    const SafetensorsFile file(path);
    std::set<std::string> used;  // the names of tensors
    const auto linear = [&](const std::string& name) {
      used.insert({name + ".weight", name + ".bias"});
      return read(file, name);
    };
    for (Index layer = 0;; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      if (file.contains(prefix + "0.weight")) {
        const LinearView first = linear(prefix + "0");
        layers_.emplace_back(first, linear(prefix + "2"));
      } else if (file.contains(prefix + "weight")) {
        layers_.emplace_back(linear(prefix.substr(0, prefix.size() - 1)));
      } else {
        break;
      }
    }
    if (layers_.empty()) {
      throw std::runtime_error("tersekv: " + path + ": expected layers.0.weight or " +
                               "layers.0.0.weight, got neither");
    }
    const std::string next = std::to_string(layers_.size());
    for (const std::string& name : file.names()) {
      if (!name.starts_with("layers.")) continue;
      const char *digits = name.data() + 7, *end = name.data() + name.size();
      Index layer = 0;
      const auto [stop, error] = std::from_chars(digits, end, layer);
      if (error == std::errc{} && stop != digits && layer >= 0 && layer < size()) {
        if (used.contains(name)) continue;
        throw std::runtime_error("tersekv: " + path +
                                 ": expected one linear layer, or .0 and .2, of layer " +
                                 std::to_string(layer) + ", got " + name);
      }
      throw std::runtime_error("tersekv: " + path + ": expected layers without a gap, got " + name +
                               " but no layers." + next + ".weight or layers." + next +
                               ".0.weight");
    }
  }
  SurrogateSet(SurrogateSet&&) = default;
  SurrogateSet& operator=(SurrogateSet&&) = default;

  Index size() const { return static_cast<Index>(layers_.size()); }
  const Surrogate& layer(Index index) const {
    if (index < 0 || index >= size()) {
      detail::refuse({"layer"}, {"0 to ", size() - 1}, {index});
    }
    return layers_[static_cast<std::size_t>(index)];
  }

 private:
  LinearView read(const SafetensorsFile& file, const std::string& name) {
    auto weight = file.tensor(name + ".weight"), bias = file.tensor(name + ".bias");
    if (weight.shape.size() != 2 || bias.shape.size() != 1 || bias.shape[0] != weight.shape[0]) {
      throw std::runtime_error("tersekv: surrogate " + name +
                               ": expected weight [outputs, inputs] and bias [outputs], got other "
                               "shapes");
    }
    const Index outputs = weight.shape[0], inputs = weight.shape[1];
    tensors_.push_back(std::move(weight.data));
    tensors_.push_back(std::move(bias.data));
    return {tensors_[tensors_.size() - 2].data(), tensors_.back().data(), outputs, inputs};
  }

  std::vector<std::vector<float>> tensors_;  // moving a vector keeps its elements in place
  std::vector<Surrogate> layers_;
};

/// As the constructor; the name engines look for.
inline SurrogateSet load_surrogates(const std::string& path) { return SurrogateSet(path); }

}  // namespace tersekv
