// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace llama {

/// How text is cut into words before byte-pair merging; merges never cross a cut.
enum class PreTokenizer {
  gpt2,    ///< contractions, [space] letters, [space] digits, [space] other signs, white space
  smollm,  ///< each digit alone first, then as gpt2 between them
  llama3,  ///< contractions of either case, letters with one leading sign, digits by threes
};

/// The pre-tokenizer a GGUF file calls `name`. Throws std::invalid_argument for an unknown name.
PreTokenizer pre_tokenizer_from_name(std::string_view name);

/// Cuts `text` into words: consecutive, non-empty, together all of `text`.
/// Classes of characters are those of Unicode; a byte that is part of no valid UTF-8 sequence is a
/// character of its own, neither letter nor digit nor white space. O(n).
std::vector<std::string_view> split_words(std::string_view text, PreTokenizer pre_tokenizer);

}  // namespace llama
