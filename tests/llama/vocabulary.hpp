// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gguf.hpp"
#include "gguf_builder.hpp"
#include "tokenizer.hpp"

namespace llama_test {

/// A byte as byte-level vocabularies write it.
inline std::string written(int byte) {
  static const auto characters = [] {
    std::array<int, 256> table{};
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 161 && b <= 172) || b >= 174;
      table[static_cast<std::size_t>(b)] = printable ? b : next++;
    }
    return table;
  }();
  const int c = characters[static_cast<std::size_t>(byte)];
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

/// A vocabulary of all bytes (ids 0 to 255), then what `merges` make, then special tokens.
struct Vocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<std::int32_t> types;
  std::string model = "gpt2", pre = "gpt-2", chat_template;
  std::uint32_t bos = 0;
  bool has_bos = true;
  int add_bos = -1;  ///< not said

  Vocabulary() {
    for (int byte = 0; byte < 256; ++byte) add(written(byte), 1);
  }
  llama::Token add(const std::string& text, std::int32_t type) {
    tokens.push_back(text);
    types.push_back(type);
    return static_cast<llama::Token>(tokens.size()) - 1;
  }
  llama::Token merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right, 1);
  }
  llama::Tokenizer load() const {
    GgufBuilder file;
    file.text("tokenizer.ggml.model", model)
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", tokens)
        .texts("tokenizer.ggml.merges", merges)
        .ints("tokenizer.ggml.token_type", types)
        .text("tokenizer.chat_template", chat_template);
    if (has_bos) file.value("tokenizer.ggml.bos_token_id", u32, bos);
    if (add_bos >= 0) {
      file.value("tokenizer.ggml.add_bos_token", boolean, add_bos == 1);
    }
    const std::vector<std::byte> bytes = file.build();
    return llama::Tokenizer(llama::GgufFile(bytes, "tiny.gguf"));
  }
};

}  // namespace llama_test
