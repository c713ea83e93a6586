// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace llama {
namespace {

// Kinds of tokens, by their numbers in the file.
constexpr std::int64_t kNormal = 1;
constexpr std::int64_t kControl = 3;
constexpr std::int64_t kUserDefined = 4;

// Byte-level vocabularies write each byte as one printable character: those printable in Latin-1 as
// themselves, the others as U+0100 and up, in order. [character] -> byte, or -1.
constexpr auto kByteOfCharacter = [] {
  std::array<std::int16_t, 0x144> bytes{};
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    bytes[is_printable ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return bytes;
}();

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The bytes that a vocabulary's text stands for. Characters outside the alphabet, which are all
// below U+0144 and so one or two bytes long, stand for themselves.
std::string decode_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const bool is_pair =
        (lead & 0xe0) == 0xc0 && i + 1 < text.size() && is_continuation(text[i + 1]);
    std::size_t character = lead < 0x80 ? lead : kByteOfCharacter.size();
    if (is_pair)
      character = (lead & 0x1fu) << 6 | (static_cast<unsigned char>(text[i + 1]) & 0x3fu);
    const std::size_t length = is_pair ? 2 : 1;
    if (character < kByteOfCharacter.size() && kByteOfCharacter[character] >= 0) {
      bytes += static_cast<char>(kByteOfCharacter[character]);
    } else {
      bytes.append(text.substr(i, length));
    }
    i += length;
  }
  return bytes;
}

std::uint64_t pair_key(Token left, Token right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

Tokenizer::Tokenizer(const GgufFile& file) : name_(file.name()) {
  const std::string_view model = file.get_string("tokenizer.ggml.model");
  if (model != "gpt2") {
    throw std::runtime_error(name_ + ": tokenizer.ggml.model: expected 'gpt2', got " +
                             quoted(model));
  }
  try {
    pre_tokenizer_ = pre_tokenizer_from_name(file.get_string("tokenizer.ggml.pre"));
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(name_ + ": " + error.what());
  }
  load_tokens(file);
  load_merges(file);
  chat_template_ = file.get_string("tokenizer.chat_template", "");
  bos_ = load_id(file, "tokenizer.ggml.bos_token_id");
  eos_ = load_id(file, "tokenizer.ggml.eos_token_id");
  // Files of the llama 3 family leave the key out and mean yes.
  const bool usual = pre_tokenizer_ == PreTokenizer::llama3 && bos_ != kNoToken;
  add_bos_ = file.get_bool("tokenizer.ggml.add_bos_token", usual);
  if (add_bos_ && bos_ == kNoToken) {
    throw std::runtime_error(name_ + ": tokenizer.ggml.add_bos_token without a bos_token_id");
  }
  ends_ = {eos_, find("<|im_end|>"), find("<|endoftext|>"), find("<|eot_id|>")};
}

void Tokenizer::load_tokens(const GgufFile& file) {
  const auto texts = file.get_strings("tokenizer.ggml.tokens");
  const auto types = file.get_ints("tokenizer.ggml.token_type");
  if (texts.empty() || types.size() != texts.size()) {
    throw std::runtime_error(name_ + ": tokenizer.ggml.token_type: expected one per token (" +
                             std::to_string(texts.size()) + ", at least 1), got " +
                             std::to_string(types.size()));
  }
  pieces_.reserve(texts.size());  // ids_ refers to them
  ids_.reserve(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    pieces_.push_back(types[i] == kNormal ? decode_alphabet(texts[i]) : std::string(texts[i]));
    const std::string_view piece = pieces_.back();
    const auto id = static_cast<Token>(i);
    ids_.emplace(piece, id);
    if (!piece.empty() && (types[i] == kControl || types[i] == kUserDefined)) {
      added_[static_cast<unsigned char>(piece[0])].push_back({id, types[i] == kControl});
    }
  }
  for (std::vector<Added>& tokens : added_) {
    std::stable_sort(tokens.begin(), tokens.end(), [this](const Added& a, const Added& b) {
      return piece(a.id).size() > piece(b.id).size();
    });
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = find(std::string(1, static_cast<char>(byte)));
  }
}

void Tokenizer::load_merges(const GgufFile& file) {
  const auto merges = file.get_strings("tokenizer.ggml.merges");
  merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const std::size_t space = merge.find(' ');
    Token left = kNoToken, right = kNoToken, result = kNoToken;
    if (space != std::string_view::npos) {
      left = find(decode_alphabet(merge.substr(0, space)));
      right = find(decode_alphabet(merge.substr(space + 1)));
    }
    if (left != kNoToken && right != kNoToken) {
      result =
          find(pieces_[static_cast<std::size_t>(left)] + pieces_[static_cast<std::size_t>(right)]);
    }
    if (result == kNoToken) {
      throw std::runtime_error(name_ + ": tokenizer.ggml.merges[" + std::to_string(rank) +
                               "]: expected two tokens that make a third");
    }
    merges_.emplace(pair_key(left, right), Merge{static_cast<std::int32_t>(rank), result});
  }
}

Token Tokenizer::load_id(const GgufFile& file, std::string_view key) const {
  if (!file.has(key)) return kNoToken;
  const std::uint32_t id = file.get_u32(key);
  if (id >= pieces_.size()) {
    throw std::runtime_error(name_ + ": " + std::string(key) + ": expected less than " +
                             std::to_string(pieces_.size()) + ", got " + std::to_string(id));
  }
  return static_cast<Token>(id);
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<Token> ids;
  std::size_t begin = 0;  // of the text not yet encoded
  for (std::size_t i = 0; i < text.size();) {
    const Token added = find_added(text.substr(i), parse_special);
    if (added == kNoToken) {
      ++i;
      continue;
    }
    encode_text(text.substr(begin, i - begin), ids);
    ids.push_back(added);
    i += piece(added).size();
    begin = i;
  }
  encode_text(text.substr(begin), ids);
  return ids;
}

Token Tokenizer::find_added(std::string_view text, bool parse_special) const {
  for (const Added& added : added_[static_cast<unsigned char>(text[0])]) {
    if (added.is_control && !parse_special) continue;
    if (text.starts_with(pieces_[static_cast<std::size_t>(added.id)])) return added.id;
  }
  return kNoToken;
}

void Tokenizer::encode_text(std::string_view text, std::vector<Token>& out) const {
  for (const std::string_view word : split_words(text, pre_tokenizer_)) {
    // This family takes a word that is a token whole, even where merges would not lead to it.
    const Token whole = pre_tokenizer_ == PreTokenizer::llama3 ? find(word) : kNoToken;
    if (whole != kNoToken) {
      out.push_back(whole);
    } else {
      encode_word(word, out);
    }
  }
}

void Tokenizer::encode_word(std::string_view word, std::vector<Token>& out) const {
  // The word as a linked list of tokens; a token merged into its left neighbour becomes kNoToken.
  struct Symbol {
    Token id;
    std::int64_t previous, next;
  };
  const auto n = static_cast<std::int64_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    if (byte_tokens_[byte] == kNoToken) {
      throw std::runtime_error(name_ + ": the vocabulary has no token for byte " +
                               std::to_string(byte));
    }
    symbols.push_back({byte_tokens_[byte], i - 1, i + 1 < n ? i + 1 : -1});
  }

  // Possible merges, best rank first, leftmost among equals. One whose tokens have changed since it
  // was found is skipped.
  struct Candidate {
    Merge merge;
    std::int64_t left, right;
    std::uint64_t key;
    bool operator<(const Candidate& other) const {
      return std::tie(merge.rank, left) > std::tie(other.merge.rank, other.left);
    }
  };
  const auto at = [&](std::int64_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::int64_t left, std::int64_t right) {
    if (left < 0 || right < 0) return;
    const std::uint64_t key = pair_key(at(left).id, at(right).id);
    const auto found = merges_.find(key);
    if (found != merges_.end()) queue.push({found->second, left, right, key});
  };
  for (std::int64_t i = 0; i + 1 < n; ++i) consider(i, i + 1);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.left);
    Symbol& right = at(best.right);
    if (pair_key(left.id, right.id) != best.key) continue;
    left.id = best.merge.result;
    left.next = right.next;
    right.id = kNoToken;
    if (left.next >= 0) at(left.next).previous = best.left;
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNoToken) out.push_back(symbol.id);
  }
}

std::string Tokenizer::decode(std::span<const Token> ids) const {
  std::string text;
  for (const Token id : ids) text += piece(id);
  return text;
}

std::string_view Tokenizer::piece(Token id) const {
  if (id < 0 || id >= vocab_size()) {
    throw std::out_of_range("token: expected 0 to " + std::to_string(vocab_size() - 1) + ", got " +
                            std::to_string(id));
  }
  return pieces_[static_cast<std::size_t>(id)];
}

std::string Tokenizer::chat_prompt(std::string_view user, std::string_view system) const {
  constexpr std::string_view kSystem = "<|im_start|>system\n";
  if (chat_template_.find("<|im_start|>") == std::string::npos) {
    throw std::runtime_error(name_ +
                             ": tokenizer.chat_template: expected one in ChatML "
                             "(<|im_start|>), got another or none");
  }
  if (system.empty()) {
    // Templates write their default as one literal; anything with quotes in it is code.
    const std::string_view text = chat_template_;
    const std::size_t begin = text.find(kSystem);
    if (begin != std::string_view::npos) {
      const std::string_view rest = text.substr(begin + kSystem.size());
      const std::string_view literal = rest.substr(0, rest.find("<|im_end|>"));
      if (literal.size() < rest.size() && literal.find_first_of("'\"") == literal.npos) {
        system = literal;
      }
    }
  }
  std::string prompt;
  if (!system.empty()) prompt.append(kSystem).append(system).append("<|im_end|>\n");
  prompt.append("<|im_start|>user\n").append(user).append("<|im_end|>\n");
  return prompt.append("<|im_start|>assistant\n");
}

bool Tokenizer::is_end(Token id) const {
  return id != kNoToken && std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

Token Tokenizer::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNoToken : found->second;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  // The first byte of the last character tells how long that is.
  std::size_t last = pending_.size();
  const std::size_t earliest = last - std::min<std::size_t>(last, 4);
  while (last > earliest && is_continuation(pending_[last - 1])) --last;
  if (last == earliest) return flush();  // nothing, or no beginning within reach
  --last;
  const auto lead = static_cast<unsigned char>(pending_[last]);
  const bool is_lead = lead >= 0xc0 && lead < 0xf8;
  const std::size_t length = !is_lead ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (pending_.size() - last >= length) return flush();
  std::string ready = pending_.substr(0, last);
  pending_.erase(0, last);
  return ready;
}

std::string Utf8Stream::flush() { return std::exchange(pending_, {}); }

}  // namespace llama
