// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tersekv/config.hpp"
#include "tersekv/page_layout.hpp"

// What attention is asked for, and the memory it works in.

namespace tersekv {

/// Query rows that are worked on at a time: of a prompt, and of a cache that has seen none.
inline constexpr Index kMostRows = 64, kFewRows = 16;
/// Tokens that are worked on at a time, where up to `tokens` of them come together.
inline Index tokens_at_once(Index group, Index tokens) {
  const Index rows = std::min(std::max(tokens, kFewRows / group), kMostRows / group);
  return std::max<Index>(rows, 1);
}

/// Whether tile registers, where there are some, work on so many tokens of a call.
inline bool is_tiled(Index tokens, Index group) { return tokens > 1 && tokens * group > kFewRows; }

/// By what rule tile registers, where there are some, work on a request: as part of a call that
/// is_tiled, without attention and logits, or as a single token of so many query heads that they
/// pay.
enum class Tiling { none, chunk, token };

/// Entries of a section: sums over one join those over the sections before it. So partial sums of
/// floats stay short, whatever the page size, and a million entries lose no more precision than a
/// few thousand do; and workers may take sections of a head, with the same results to the bit.
inline constexpr Index kSection = 256;
/// Entries that lie together, of a section and of a page.
inline Index block_entries(Index page_size) { return std::min(page_size, kSection); }
inline Index sections_of(Index entries) { return (entries + kSection - 1) / kSection; }
/// How many parts one token's attention to so many entries is worth sharing out in: of two sections
/// at least, as waking others, or reading what they wrote, costs as much as less would save; of one
/// where they are awake and no policy looks at what they wrote.
inline Index most_parts_of(Index entries, bool of_one_section) {
  return of_one_section ? entries / kSection : sections_of(entries) / 2;
}
/// The section that part `part` begins with. Of no more parts than that, the last part has the last
/// kSection entries at least, so nobody else reads what lies in the last entry's slot, though
/// values are read in whole vectors.
inline Index first_section_of(Index part, Index parts, Index entries) {
  return sections_of(entries) * part / parts;
}

/// What the workers share that work on one token's request together.
struct SharedBuffers {
  float* kept = nullptr;      ///< [tiles, group_size, tile], where attention per entry is wanted
  float* powers = nullptr;    ///< [tiles, group_size], in whole vectors, likewise
  float* sections = nullptr;  ///< an AttentionSums for each section, or null: one does all
  Index stride = 0;           ///< of rows of logits: no less than the entries, in whole pages
};

/// Buffers of one worker for `attend`, for `rows` query rows: those of `tokens` of a prompt, or of
/// one.
struct AttentionBuffers {
  float* tile = nullptr;     ///< [rows, block_entries] or [group_size, kSection]
  float* sums = nullptr;     ///< [2, AttentionSums::floats(rows, padded_dim(head_dim))]
  float* softmax = nullptr;  ///< [RunningSoftmax::floats(rows)]
  float* weights = nullptr;  ///< [2, kSection]
  float* pairs = nullptr;    ///< [rows, head_dim / 2], for keys of BFloat16
  // For keys and values of one byte:
  float* byte_queries = nullptr;  ///< [rows, padded_dim(head_dim)]
  float* byte_units = nullptr;    ///< [rows, ByteRows::kUnits]
  float* share_units = nullptr;   ///< [rows]
  float* tiled = nullptr;         ///< TiledAttention's, where requests may be tiled
  SharedBuffers shared;
};

/// Query rows of a few tokens of one KV head's group against the head's entries. The last token
/// sees the first `visible` slots, the one before it one less, and so on.
struct AttentionRequest {
  const float* query = nullptr;  ///< [tokens, group_size, head_dim]
  Index tokens = 1;              ///< as many as the buffers have room for
  Index visible = 0;
  float alpha = 0.0f;  ///< compensation; used only where the cache has weights
  GroupReduce reduce = GroupReduce::sum;
  float* out = nullptr;        ///< [tokens, group_size, head_dim], or null: the values are not read
  float* lse = nullptr;        ///< [tokens, group_size]
  float* attention = nullptr;  ///< [visible] or null: reduced over the group; of one token
  float* logits = nullptr;     ///< [group_size, stride] or null: without the bias; of one token
  Tiling tiling = Tiling::none;
  /// Of the head that is read next, if that is known: its first keys may be asked for in time.
  PageTable next_pages = {};
};

}  // namespace tersekv
