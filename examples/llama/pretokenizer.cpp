// SPDX-License-Identifier: Apache-2.0
#include "pretokenizer.hpp"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "gguf.hpp"

namespace llama {
namespace {

enum class CharClass : std::uint8_t { letter, digit, space, newline, other, end };

CharClass classify(UChar32 code) {
  if (code < 0) return CharClass::other;  // not UTF-8
  if (code == '\r' || code == '\n') return CharClass::newline;
  if (u_isUWhiteSpace(code)) return CharClass::space;
  const std::uint32_t mask = U_GET_GC_MASK(code);
  if (mask & U_GC_L_MASK) return CharClass::letter;
  if (mask & U_GC_N_MASK) return CharClass::digit;
  return CharClass::other;
}

bool is_white(CharClass c) { return c == CharClass::space || c == CharClass::newline; }

// A position in the text; beyond the last character the class is `end`.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) { decode(); }

  CharClass char_class() const { return class_; }
  bool at_end() const { return class_ == CharClass::end; }
  bool at(char c) const { return begin_ < text_.size() && text_[begin_] == c; }
  std::size_t position() const { return begin_; }
  std::string_view rest() const { return text_.substr(begin_); }

  void next() {
    begin_ = end_;
    decode();
  }
  void move_to(std::size_t position) {
    end_ = position;
    next();
  }
  template <class Predicate>
  void skip_while(Predicate&& predicate) {
    while (!at_end() && predicate(class_)) next();
  }

 private:
  void decode() {
    if (begin_ >= text_.size()) {
      class_ = CharClass::end;
      return;
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text_.data()) + begin_;
    const std::size_t left = text_.size() - begin_;
    UChar32 code = bytes[0];
    std::int32_t length = 0;
    if (code < 0x80) {
      length = 1;
    } else {
      U8_NEXT(bytes, length, static_cast<std::int32_t>(std::min<std::size_t>(left, 4)), code);
    }
    end_ = begin_ + static_cast<std::size_t>(length);
    class_ = classify(code);
  }

  std::string_view text_;
  std::size_t begin_ = 0;  // of the current character
  std::size_t end_ = 0;
  CharClass class_ = CharClass::end;
};

// Length of the English contraction 's 't 'm 'd 're 've 'll that `text` begins with, or 0.
std::size_t contraction_length(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto fold = [&](char c) {
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = fold(text[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (text.size() < 3) return 0;
  const char second = fold(text[2]);
  const bool is_long =
      ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return is_long ? 3 : 0;
}

// A run of white space. Before other text its last character stays behind, to join the next word
// if that takes it; a run of one is a word of its own.
void skip_white(Scanner& scanner) {
  const std::size_t begin = scanner.position();
  std::size_t last = begin;
  while (is_white(scanner.char_class())) {
    last = scanner.position();
    scanner.next();
  }
  if (!scanner.at_end() && last > begin) scanner.move_to(last);
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
void skip_word_gpt2(Scanner& scanner) {
  if (const std::size_t length = contraction_length(scanner.rest(), false)) {
    return scanner.move_to(scanner.position() + length);
  }
  const std::size_t begin = scanner.position();
  if (scanner.at(' ')) scanner.next();
  const CharClass run = scanner.char_class();
  if (!is_white(run) && run != CharClass::end) {
    return scanner.skip_while([run](CharClass c) { return c == run; });
  }
  scanner.move_to(begin);
  skip_white(scanner);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+
void skip_word_llama3(Scanner& scanner) {
  if (const std::size_t length = contraction_length(scanner.rest(), true)) {
    return scanner.move_to(scanner.position() + length);
  }
  const auto is_letter = [](CharClass c) { return c == CharClass::letter; };
  const std::size_t begin = scanner.position();
  const CharClass first = scanner.char_class();
  if (is_letter(first)) return scanner.skip_while(is_letter);
  if (first == CharClass::digit) {
    for (int i = 0; i < 3 && scanner.char_class() == CharClass::digit; ++i) scanner.next();
    return;
  }
  const bool is_blank = scanner.at(' ');
  scanner.next();
  if (first != CharClass::newline && is_letter(scanner.char_class())) {
    return scanner.skip_while(is_letter);
  }
  if (first == CharClass::other || (is_blank && scanner.char_class() == CharClass::other)) {
    scanner.skip_while([](CharClass c) { return c == CharClass::other; });
    return scanner.skip_while([](CharClass c) { return c == CharClass::newline; });
  }
  // White space: up to its last line break, if it has one.
  scanner.move_to(begin);
  std::size_t after_newline = begin;
  while (is_white(scanner.char_class())) {
    const bool is_newline = scanner.char_class() == CharClass::newline;
    scanner.next();
    if (is_newline) after_newline = scanner.position();
  }
  scanner.move_to(after_newline);
  if (after_newline == begin) skip_white(scanner);
}

template <class SkipWord>
void split(std::string_view text, SkipWord&& skip_word, std::vector<std::string_view>& words) {
  Scanner scanner(text);
  while (!scanner.at_end()) {
    const std::size_t begin = scanner.position();
    skip_word(scanner);
    words.push_back(text.substr(begin, scanner.position() - begin));
  }
}

// Each digit is a word; what lies between them is split on its own, so white space before a digit
// counts as white space at the end of a text.
void split_smollm(std::string_view text, std::vector<std::string_view>& words) {
  Scanner scanner(text);
  while (!scanner.at_end()) {
    const std::size_t begin = scanner.position();
    if (scanner.char_class() == CharClass::digit) {
      scanner.next();
      words.push_back(text.substr(begin, scanner.position() - begin));
    } else {
      scanner.skip_while([](CharClass c) { return c != CharClass::digit; });
      split(text.substr(begin, scanner.position() - begin), skip_word_gpt2, words);
    }
  }
}

struct Name {
  std::string_view name;
  PreTokenizer pre_tokenizer;
};
constexpr std::array<Name, 6> kNames = {{
    {"gpt-2", PreTokenizer::gpt2},
    {"smollm", PreTokenizer::smollm},
    {"starcoder", PreTokenizer::smollm},
    {"llama-bpe", PreTokenizer::llama3},
    {"llama3", PreTokenizer::llama3},
    {"llama-v3", PreTokenizer::llama3},
}};

}  // namespace

PreTokenizer pre_tokenizer_from_name(std::string_view name) {
  std::string known;
  for (const Name& entry : kNames) {
    if (entry.name == name) return entry.pre_tokenizer;
    known.append(known.empty() ? "" : ", ").append(entry.name);
  }
  throw std::invalid_argument("pre-tokenizer: expected one of " + known + ", got " + quoted(name));
}

std::vector<std::string_view> split_words(std::string_view text, PreTokenizer pre_tokenizer) {
  std::vector<std::string_view> words;
  switch (pre_tokenizer) {
    case PreTokenizer::gpt2:
      split(text, skip_word_gpt2, words);
      break;
    case PreTokenizer::smollm:
      split_smollm(text, words);
      break;
    case PreTokenizer::llama3:
      split(text, skip_word_llama3, words);
      break;
  }
  return words;
}

}  // namespace llama
