// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gguf.hpp"
#include "pretokenizer.hpp"

namespace llama {

using Token = std::int32_t;
inline constexpr Token kNoToken = -1;

/// GPT-2 style byte-level BPE, from a GGUF file's metadata (`tokenizer.ggml.*`).
///
/// Text is split into words by the pre-tokenizer the file names, a word into bytes, and the pair of
/// neighbours with the best merge rank is joined until none is left. Bytes that are no valid UTF-8
/// are encoded as themselves, so decode(encode(text)) == text for any bytes.
/// Owns what it needs: the file may be closed. Const members may be called from several threads.
class Tokenizer {
 public:
  /// Throws std::runtime_error where the metadata is missing, inconsistent, or of another kind.
  explicit Tokenizer(const GgufFile& file);
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  /// With `parse_special`, the text of a control token (such as <|im_start|>) becomes that token,
  /// the longest first; without, it is text like any other. Tokens the file calls user-defined are
  /// always found. Adds no begin-of-text token. O(n log n) in the length of a word. Throws
  /// std::runtime_error where a byte has no token in this vocabulary.
  std::vector<Token> encode(std::string_view text, bool parse_special = true) const;

  /// The bytes of all tokens in a row. Throws std::out_of_range for an id outside the vocabulary.
  std::string decode(std::span<const Token> ids) const;

  /// The bytes of one token, which may begin or end inside a character (see Utf8Stream).
  /// Throws std::out_of_range.
  std::string_view piece(Token id) const;

  /// A ChatML prompt for one user message, up to where the assistant's answer begins; encode it
  /// with parse_special. Without a system message, the one in the model's template is used, if any.
  /// Throws std::runtime_error where the file's template is not ChatML.
  std::string chat_prompt(std::string_view user, std::string_view system = {}) const;

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(pieces_.size()); }
  Token bos() const { return bos_; }         ///< kNoToken where the file names none
  Token eos() const { return eos_; }         ///< kNoToken where the file names none
  bool add_bos() const { return add_bos_; }  ///< whether the model expects bos() before a text
  /// Whether a model that emits `id` has finished: end of text, or end of a ChatML turn.
  bool is_end(Token id) const;
  /// The token whose text is exactly `text` (in bytes), or kNoToken.
  Token find(std::string_view text) const;

 private:
  struct PairHash {
    std::size_t operator()(std::uint64_t pair) const noexcept {
      return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15ULL) >> 20);
    }
  };
  struct Merge {
    std::int32_t rank;
    Token result;
  };

  // A token found in text before the text is cut into words.
  struct Added {
    Token id;
    bool is_control;
  };

  void load_tokens(const GgufFile& file);
  void load_merges(const GgufFile& file);
  Token load_id(const GgufFile& file, std::string_view key) const;
  Token find_added(std::string_view text, bool parse_special) const;
  void encode_text(std::string_view text, std::vector<Token>& out) const;
  void encode_word(std::string_view word, std::vector<Token>& out) const;

  std::string name_;  // of the file, for messages
  PreTokenizer pre_tokenizer_;
  std::vector<std::string> pieces_;                            // bytes of each token
  std::unordered_map<std::string_view, Token> ids_;            // views into pieces_
  std::array<Token, 256> byte_tokens_{};                       // kNoToken where a byte has none
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;  // by pair_key(left, right)
  std::array<std::vector<Added>, 256> added_;                  // by first byte, longest text first
  std::vector<Token> ends_;
  std::string chat_template_;
  Token bos_ = kNoToken;
  Token eos_ = kNoToken;
  bool add_bos_ = false;
};

/// Joins pieces of tokens into whole UTF-8 characters for streaming output: a character whose last
/// bytes are still to come is held back. Bytes that cannot become a character pass as they are.
class Utf8Stream {
 public:
  /// What can be shown once `bytes` have arrived.
  std::string push(std::string_view bytes);
  /// What was held back, at the end of the output.
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace llama
