// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pretokenizer.hpp"
#include "support/random.hpp"

namespace {

using llama::PreTokenizer;
using llama::split_words;
using Words = std::vector<std::string_view>;

constexpr PreTokenizer kAll[] = {PreTokenizer::gpt2, PreTokenizer::smollm, PreTokenizer::llama3};

}  // namespace

TEST_CASE("gpt2 words") {
  const auto split = [](std::string_view text) { return split_words(text, PreTokenizer::gpt2); };
  CHECK(split("") == Words{});
  CHECK(split("Hello, world!") == Words{"Hello", ",", " world", "!"});
  CHECK(split("we've they'll I'm") == Words{"we", "'ve", " they", "'ll", " I", "'m"});
  CHECK(split("DON'T 'sad") == Words{"DON", "'", "T", " '", "sad"});
  CHECK(split("a  b   ") == Words{"a", " ", " b", "   "});
  CHECK(split("a \n\n b\t\tc") == Words{"a", " \n\n", " b", "\t", "\t", "c"});
  CHECK(split("year 2024!?") == Words{"year", " 2024", "!?"});
  CHECK(split("x\xc2\xa0y") == Words{"x", "\xc2\xa0", "y"});  // no-break space
  CHECK(split("na\xc3\xafve \xd0\xbc\xd0\xb8") == Words{"na\xc3\xafve", " \xd0\xbc\xd0\xb8"});
  CHECK(split("2\xc2\xbd\xe2\x85\xa7") == Words{"2\xc2\xbd\xe2\x85\xa7"});  // ½ and Ⅷ are digits
  CHECK(split("a\xcc\x81") == Words{"a", "\xcc\x81"});                      // a mark is no letter
  CHECK(split("a\xff\xfe z\xe2\x82") == Words{"a", "\xff\xfe", " z", "\xe2\x82"});
}

TEST_CASE("smollm words: each digit alone, and a text of its own between digits") {
  const auto split = [](std::string_view text) { return split_words(text, PreTokenizer::smollm); };
  CHECK(split("in 1984, yes") == Words{"in", " ", "1", "9", "8", "4", ",", " yes"});
  CHECK(split("a   7") == Words{"a", "   ", "7"});
  CHECK(split("a   b") == Words{"a", "  ", " b"});
  CHECK(split("1 \xe2\x85\xa7") == Words{"1", " ", "\xe2\x85\xa7"});
}

TEST_CASE("llama3 words") {
  const auto split = [](std::string_view text) { return split_words(text, PreTokenizer::llama3); };
  CHECK(split("Hello, world!\n\n") == Words{"Hello", ",", " world", "!\n\n"});
  CHECK(split("DON'T I'll") == Words{"DON", "'T", " I", "'ll"});
  CHECK(split("12345 6") == Words{"123", "45", " ", "6"});
  CHECK(split("\tx $y (z") == Words{"\tx", " $", "y", " (", "z"});
  CHECK(split("$y") == Words{"$y"});
  CHECK(split("a \n \n  b") == Words{"a", " \n \n", " ", " b"});
  CHECK(split("a   ") == Words{"a", "   "});
  CHECK(split("a  1") == Words{"a", " ", " ", "1"});
  CHECK(split("\n x") == Words{"\n", " x"});
  CHECK(split("  !! \n") == Words{" ", " !!", " \n"});
}

TEST_CASE("words are not empty and make up the text, whatever its bytes") {
  support::Random random(1);
  INFO(random);
  const std::string common = " \n\r\t'sTl1\xc2\xa0\xe4\xbd\xa0\xf0\x9f\x98\x80!";
  for (int trial = 0; trial < 5000; ++trial) {
    std::string text(static_cast<std::size_t>(random.integer(0, 24)), ' ');
    for (char& c : text) {
      const auto at = static_cast<std::size_t>(random.integer(0, std::ssize(common) - 1));
      c = random.chance(0.9) ? common[at] : static_cast<char>(random.integer(0, 255));
    }
    for (const PreTokenizer pre_tokenizer : kAll) {
      std::string joined;
      for (const std::string_view word : split_words(text, pre_tokenizer)) {
        CHECK_FALSE(word.empty());
        joined += word;
      }
      CHECK(joined == text);
    }
  }
}

TEST_CASE("pre-tokenizers are found by name") {
  CHECK(llama::pre_tokenizer_from_name("gpt-2") == PreTokenizer::gpt2);
  CHECK(llama::pre_tokenizer_from_name("smollm") == PreTokenizer::smollm);
  CHECK(llama::pre_tokenizer_from_name("llama-bpe") == PreTokenizer::llama3);
  CHECK_THROWS_AS(llama::pre_tokenizer_from_name("default"), std::invalid_argument);
  CHECK_THROWS_AS(llama::pre_tokenizer_from_name(""), std::invalid_argument);
}
