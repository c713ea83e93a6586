// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/random.hpp"
#include "tokenizer.hpp"
#include "vocabulary.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using llama::GgufFile;
using llama::Token;
using llama::Tokenizer;
using llama_test::Vocabulary;
using llama_test::written;
using Tokens = std::vector<Token>;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::filesystem::path kGolden =
    std::filesystem::path(TERSEKV_SOURCE_DIR) / "tests/data/golden/tokenizer";

Tokenizer model_tokenizer() {
  const char* path = std::getenv("TERSEKV_MODEL");
  if (!path) {
    if (std::getenv("TERSEKV_NO_SKIP")) FAIL("TERSEKV_MODEL names no model file");
    SKIP("TERSEKV_MODEL names no model file");
  }
  return Tokenizer(GgufFile(std::filesystem::path(path)));
}

}  // namespace

TEST_CASE("the default text has exactly the golden token ids") {
  const Tokenizer tokenizer = model_tokenizer();
  const std::string text =
      read_file(std::filesystem::path(TERSEKV_SOURCE_DIR) / "examples/data/kjv.txt");
  const std::string golden = read_file(kGolden / "kjv_ids_u16le.bin");
  Tokens expected;
  for (std::size_t i = 0; i + 1 < golden.size(); i += 2) {
    expected.push_back(static_cast<unsigned char>(golden[i]) |
                       static_cast<unsigned char>(golden[i + 1]) << 8);
  }
  REQUIRE(expected.size() > 70000);
  const Tokens ids = tokenizer.encode(text);
  CHECK(ids.size() == expected.size());
  const auto differ = std::mismatch(ids.begin(), ids.end(), expected.begin(), expected.end());
  CHECK(differ.first - ids.begin() == std::ssize(expected));  // else: where they part
  CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("awkward texts and special tokens have the golden ids") {
  const Tokenizer tokenizer = model_tokenizer();
  for (const char* name : {"samples.json", "special.json"}) {
    const auto cases = nlohmann::json::parse(read_file(kGolden / name));
    REQUIRE_FALSE(cases.empty());
    for (const auto& item : cases) {
      const auto text = item.at("text").get<std::string>();
      CAPTURE(name, text);
      CHECK(tokenizer.encode(text) == item.at("ids").get<Tokens>());
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
      CHECK(tokenizer.decode(tokenizer.encode(text, false)) == text);
    }
  }
}

TEST_CASE("the model's chat prompt is ChatML with the system message of its template") {
  const Tokenizer tokenizer = model_tokenizer();
  CHECK(tokenizer.chat_prompt("Hi", "Be brief.") ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(tokenizer.chat_prompt("Hi") ==
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const Token turn = tokenizer.find("<|im_end|>");
  CHECK(tokenizer.encode(tokenizer.chat_prompt("Hi")).front() == tokenizer.find("<|im_start|>"));
  CHECK(tokenizer.is_end(turn));
  CHECK(tokenizer.is_end(tokenizer.find("<|endoftext|>")));
  CHECK_FALSE(tokenizer.is_end(tokenizer.find("a")));
  CHECK(tokenizer.eos() == turn);
  CHECK_FALSE(tokenizer.add_bos());
}

TEST_CASE("any bytes survive encoding and decoding") {
  Vocabulary vocabulary;
  vocabulary.merge("a", "b");
  vocabulary.merge(written(0xc3), written(0xa9));
  support::Random random(1);
  INFO(random);
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe"}) {
    vocabulary.pre = pre;
    const Tokenizer tokenizer = vocabulary.load();
    for (int trial = 0; trial < 2000; ++trial) {
      std::string text(static_cast<std::size_t>(random.integer(0, 30)), ' ');
      for (char& c : text) {
        const auto common =
            static_cast<char>("ab \n\xc3\xa9\xe2\xf0\x9f\x37"[random.integer(0, 9)]);
        c = random.chance(0.7) ? common : static_cast<char>(random.integer(0, 255));
      }
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    }
  }
}

TEST_CASE("merges are those of the definition: lowest rank first, leftmost first") {
  support::Random random(2);
  INFO(random);
  for (int trial = 0; trial < 200; ++trial) {
    Vocabulary vocabulary;
    std::vector<std::string> parts = {"a", "b", "c"};
    for (int i = 0; i < 12; ++i) {
      const std::string left = random.pick(parts), right = random.pick(parts);
      if (std::find(parts.begin(), parts.end(), left + right) != parts.end()) continue;
      vocabulary.merge(left, right);
      parts.push_back(left + right);
    }
    const Tokenizer tokenizer = vocabulary.load();

    std::string word;
    const std::int64_t length = random.integer(1, 40);
    for (std::int64_t i = 0; i < length; ++i) word += "abc"[random.integer(0, 2)];
    std::vector<std::string> symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    for (bool merged = true; merged;) {
      merged = false;
      for (const std::string& merge : vocabulary.merges) {
        for (std::size_t i = 0; i + 1 < symbols.size() && !merged; ++i) {
          if (symbols[i] + " " + symbols[i + 1] != merge) continue;
          symbols[i] += symbols[i + 1];
          symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    Tokens expected;
    for (const std::string& symbol : symbols) expected.push_back(tokenizer.find(symbol));
    CAPTURE(word);
    CHECK(tokenizer.encode(word) == expected);
  }
}

TEST_CASE("special tokens are found, the longest first, where they are asked for") {
  Vocabulary vocabulary;
  const Token end = vocabulary.add("<|end|>", 3);
  const Token end_of = vocabulary.add("<|end|>of", 3);
  const Token user = vocabulary.add("@@", 4);
  const Tokenizer tokenizer = vocabulary.load();
  CHECK(tokenizer.encode("<|end|>of<|end|>o") == Tokens{end_of, end, 'o'});
  CHECK(tokenizer.encode("<|end<|end|>") == Tokens{'<', '|', 'e', 'n', 'd', end});
  CHECK(tokenizer.encode("<|end|>", false) == Tokens{'<', '|', 'e', 'n', 'd', '|', '>'});
  CHECK(tokenizer.encode("a@@@", false) == Tokens{'a', user, '@'});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.piece(end_of) == "<|end|>of");
  CHECK_THROWS_AS(tokenizer.piece(-1), std::out_of_range);
  CHECK_THROWS_AS(tokenizer.decode(Tokens{user + 1}), std::out_of_range);
  CHECK_THROWS_MATCHES(tokenizer.chat_prompt("Hi"), std::runtime_error,
                       MessageMatches(ContainsSubstring("expected one in ChatML")));
}

TEST_CASE("the llama 3 family takes a word that is a token whole") {
  Vocabulary vocabulary;
  const Token whole = vocabulary.add("abc", 1);
  CHECK(vocabulary.load().encode("abc") == Tokens{'a', 'b', 'c'});
  vocabulary.pre = "llama-bpe";
  CHECK(vocabulary.load().encode("abc") == Tokens{whole});
}

TEST_CASE("a text begins with a token of its own where the file says so, or the llama 3 family") {
  Vocabulary vocabulary;
  CHECK_FALSE(vocabulary.load().add_bos());
  vocabulary.add_bos = 1;
  CHECK(vocabulary.load().add_bos());
  vocabulary.pre = "llama-bpe";
  vocabulary.add_bos = 0;
  CHECK_FALSE(vocabulary.load().add_bos());
  vocabulary.add_bos = -1;
  CHECK(vocabulary.load().add_bos());
  vocabulary.has_bos = false;
  CHECK_FALSE(vocabulary.load().add_bos());
}

TEST_CASE("a very long word is encoded without quadratic work") {
  Vocabulary vocabulary;
  std::string part = "a";
  for (int i = 0; i < 4; ++i)
    part += part, vocabulary.merge(part.substr(part.size() / 2), part.substr(part.size() / 2));
  const Tokens ids = vocabulary.load().encode(std::string(1 << 18, 'a'));
  CHECK(ids.size() == (1 << 18) / 16);
}

TEST_CASE("tokenizers that cannot be right are refused with the reason") {
  const auto refuses = [](const Vocabulary& vocabulary, const std::string& what) {
    CHECK_THROWS_MATCHES(
        vocabulary.load(), std::runtime_error,
        MessageMatches(ContainsSubstring("tiny.gguf: ") && ContainsSubstring(what)));
  };
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  refuses(vocabulary, "expected 'gpt2', got 'llama'");
  vocabulary = {};
  vocabulary.pre = "qwen35";
  refuses(vocabulary, "pre-tokenizer: expected one of gpt-2, smollm");
  vocabulary = {};
  vocabulary.types.pop_back();
  refuses(vocabulary, "expected one per token (256, at least 1), got 255");
  vocabulary = {};
  vocabulary.bos = 256;
  refuses(vocabulary, "bos_token_id: expected less than 256, got 256");
  vocabulary = {};
  vocabulary.has_bos = false;
  vocabulary.add_bos = 1;
  refuses(vocabulary, "add_bos_token without a bos_token_id");
  for (const char* merge : {"a b", "ab", "a bc", ""}) {
    vocabulary = {};
    vocabulary.merges = {merge};
    refuses(vocabulary, "merges[0]: expected two tokens that make a third");
  }
  vocabulary = {};
  vocabulary.tokens['a'] = "none";
  const Tokenizer tokenizer = vocabulary.load();
  CHECK_THROWS_MATCHES(tokenizer.encode("xax"), std::runtime_error,
                       MessageMatches(ContainsSubstring("no token for byte 97")));
}

TEST_CASE("streamed pieces come out as whole characters") {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    llama::Utf8Stream stream;
    std::string shown;
    for (std::size_t i = 0; i < text.size(); i += size) {
      const std::string ready = stream.push(text.substr(i, size));
      shown += ready;
      CHECK(text.starts_with(shown));
      // Never the beginning of a character without its end.
      const bool is_cut = shown.size() < text.size() && (text[shown.size()] & 0xc0) == 0x80;
      CHECK_FALSE(is_cut);
    }
    CHECK(shown == text);
    CHECK(stream.flush().empty());
  }
  llama::Utf8Stream stream;
  CHECK(stream.push("a\xe2\x82") == "a");
  CHECK(stream.flush() == "\xe2\x82");
  CHECK(stream.push("\x80\x80\x80\x80\xff") == "\x80\x80\x80\x80\xff");
  CHECK(stream.push("\xe2z") == "\xe2z");
}
