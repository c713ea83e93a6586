// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "tersekv/asked_lines.hpp"
#include "tersekv/attention_request.hpp"
#include "tersekv/config.hpp"
#include "tersekv/head_view.hpp"
#include "tersekv/simd.hpp"

namespace tersekv::detail {

/// Whether a head of so many entries, read by `rows` query rows, is taken to come from beyond the
/// second-level cache: engines go through other layers before they come back to one. By bytes only
/// where that was timed, for as many entries as lie together there: on Intel's processors, but for
/// a single row of less than floats, which is done with a section's keys so soon that they are best
/// asked for as from a cache; and on a Zen 4 for a single row and for bytes, which gain if nothing
/// is asked for, or lines apart. On a Skylake all but several rows over many floats are best asked
/// for as from a cache, wherever they are.
template <class Key, class Value>
bool is_far(Index entries, Index head_dim, Index block, Index rows) {
  constexpr bool bytes = sizeof(Key) == 1 && sizeof(Value) == 1;
  constexpr bool zen4 = simd::kZen == 4 && simd::kLanes == 16;
  const Index held = entries * head_dim * Index{sizeof(Key) + sizeof(Value)};
  constexpr bool floats = sizeof(Key) == sizeof(float) || sizeof(Value) == sizeof(float);
  if (simd::kSkylake) return floats && rows > 1 && held > kFarFloatBytes;
  const bool apart = simd::kAsksApart && (rows > 1 || floats);
  const bool by_bytes = apart || (zen4 && (rows == 1 || bytes));
  return entries >= kFarEntries || (by_bytes && held >= kFarBytes && block >= kFarBlock);
}

/// Whether lines are asked for of four pages, of so many bytes from the first key to the last
/// value, rather than of one's four quarters: of what may have left the last level's cache, and on
/// a Zen 4 where quarters are less than a page of the system's apart.
inline bool asks_in_fours(Index entries, Index page_bytes) {
  return entries >= kMemoryEntries || (simd::kZen == 4 && page_bytes < AskedLines::kPlaces * 4096);
}

/// Whether a tile of `entries` entries from `start` on holds the one that a block's worth of the
/// `visible` ones begins with, the last: one tile does.
inline bool holds_last_block(Index start, Index entries, Index visible, Index block) {
  const Index first = std::max<Index>(visible - block, 0);
  return start <= first && first < start + entries;
}

/// f(memory, bytes) for what is read first of a head, `bytes` bytes in all if it has as many: of
/// each of its pages the first `of_page`, keys alone or what follows them, too.
template <class F>
void for_first_bytes(PageTable pages, Index bytes, Index of_page, F&& f) {
  for (const std::byte* page : pages) {
    if (bytes <= 0) return;
    f(page, std::min(of_page, bytes));
    bytes -= of_page;
  }
}

/// The lines that attention asks for along with a page, of a head whose pages it reads in order:
/// those of pages that come later, from the first key to the last value. Of the next page, or of
/// the next four pages side by side, along with those of four.
template <class Head>
class PagesAhead {
 public:
  /// For who reads `visible` entries, or their keys alone.
  PagesAhead(const Head& head, Index visible, bool keys_alone)
      : head_(head), last_(head.page_index(visible - 1)) {
    const auto* keys = reinterpret_cast<const std::byte*>(head.key_page(0));
    const auto* values = reinterpret_cast<const std::byte*>(head.value_page(0));
    key_bytes_ = head.head_dim() * Index{sizeof(typename Head::Key)};
    value_bytes_ = head.head_dim() * Index{sizeof(typename Head::Value)};
    to_values_ = keys_alone ? head.page_size() * key_bytes_ : values - keys;
    bytes_ = to_values_ + (keys_alone ? 0 : head.page_size() * value_bytes_);
    in_fours_ = asks_in_fours(visible, values - keys + head.page_size() * value_bytes_);
  }

  /// Of a page, from the first key to the last that is read of it.
  Index page_bytes() const { return bytes_; }
  /// Those for who begins with the keys of entry `start`, or with its value.
  AskedLines with_keys(Index start) const { return lines(start, 0, key_bytes_); }
  AskedLines with_values(Index start) const { return lines(start, to_values_, value_bytes_); }
  /// Asks for as much as lies between a page's keys and its values.
  void ask_for_rest(Index start) const {
    const Index all_keys = head_.page_size() * key_bytes_;
    const AskedLines rest = lines(start, all_keys, 0);
    const Index times = (to_values_ - all_keys) / AskedLines::kBytes;
    for (Index i = 0; i < times; ++i) rest.template ask<AskedLines::kPlaces>(i);
  }

 private:
  AskedLines lines(Index start, Index before, Index entry_bytes) const {
    const Index index = head_.page_index(start), next = in_fours_ ? (index & -4) + 4 : index + 1;
    const AskedLines all =
        in_fours_ ? AskedLines(keys(next), keys(next + 1), keys(next + 2), keys(next + 3))
                  : AskedLines::of_quarters(keys(next), bytes_);
    return all.after((in_fours_ ? index % 4 * bytes_ : 0) + before +
                     head_.in_page(start) * entry_bytes);
  }
  const void* keys(Index index) const { return head_.key_page(std::min(index, last_)); }

  const Head& head_;
  Index last_;
  bool in_fours_ = false;
  Index key_bytes_ = 0, value_bytes_ = 0;  ///< of an entry
  Index to_values_ = 0, bytes_ = 0;        ///< of a page: up to its first value, and to the last
};

}  // namespace tersekv::detail
