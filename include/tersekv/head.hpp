// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// Where the columns of a page lie, in bytes from its start. A page holds `page_size` entries:
///
///   keys        [head_dim, page_size]   KeyCodec; d-major, so that the logits of a page need no
///                                       horizontal sums
///   values      [page_size, head_dim]   ValueCodec
///   weights     [page_size]             float, only if the policy merges
///   positions   [page_size]             int32
///   statistics  [statistics, page_size] 4 bytes each, the policy's
struct PageLayout {
  Index page_size = 0, head_dim = 0, statistics = 0;
  int shift = 0;                         ///< log2(page_size)
  Index key_bytes = 0, value_bytes = 0;  ///< of one element
  bool has_weights = false;
  Index values_at = 0, weights_at = 0, positions_at = 0, statistics_at = 0, page_bytes = 0;

  PageLayout() = default;
  PageLayout(Index entries, Index dim, Index bytes_of_key, Index bytes_of_value, bool weights,
             Index columns)
      : page_size(entries),
        head_dim(dim),
        statistics(columns),
        key_bytes(bytes_of_key),
        value_bytes(bytes_of_value),
        has_weights(weights) {
    while ((Index{1} << shift) < page_size) ++shift;
    values_at = page_size * head_dim * key_bytes;
    weights_at = values_at + page_size * head_dim * value_bytes;
    positions_at = weights_at + (has_weights ? 4 * page_size : 0);
    statistics_at = positions_at + 4 * page_size;
    const Index end = statistics_at + 4 * page_size * statistics;
    page_bytes = (end + 63) / 64 * 64;
  }
};

/// What a head knows of itself; the numbers of live entries and of tokens seen differ by what the
/// policy evicted and merged.
struct HeadState {
  Index length = 0;   ///< live entries
  Index seen = 0;     ///< tokens ever appended; the next one's position
  Index pinned = 0;   ///< slots [0, pinned) belong to the merger and are never victims
  Index fresh = 0;    ///< tokens appended since the last compression; they hold the last slots
  Index waiting = 0;  ///< tokens appended since the selector last acted; LowestScore resets it
  Index budget = kUnlimited;
  Counts counts;
};

/// Scratch of one worker, large enough for the head it works on.
struct Scratch {
  float* floats = nullptr;        ///< [entries, rounded up to whole pages], for similarities
  float* vector = nullptr;        ///< [head_dim], for a key
  std::int32_t* slots = nullptr;  ///< [kSlotLists * entries], for lists of slots
  static constexpr Index kSlotLists = 4;
};

/// One KV head's entries as a policy sees them: a reference, cheap to copy, that reads and writes
/// floats whatever the storage. Slots [0, length) are live, in no particular order.
template <class KeyCodec, class ValueCodec>
class Head {
 public:
  using Key = KeyCodec;
  using Value = ValueCodec;

  TERSEKV_HD Head(std::byte* const* page_table, const PageLayout* page_layout,
                  HeadState* head_state, const Shape* head_shape, float* policy_registers,
                  const Scratch& worker_scratch)
      : pages_(page_table),
        layout_(page_layout),
        state_(head_state),
        shape_(head_shape),
        registers_(policy_registers),
        scratch_(worker_scratch) {}

  TERSEKV_HD Index length() const { return state_->length; }
  TERSEKV_HD Index tokens_seen() const { return state_->seen; }
  TERSEKV_HD Index budget() const { return state_->budget; }
  TERSEKV_HD Index head_dim() const { return layout_->head_dim; }
  TERSEKV_HD Index page_size() const { return layout_->page_size; }
  TERSEKV_HD const Shape& shape() const { return *shape_; }
  TERSEKV_HD HeadState& state() const { return *state_; }
  TERSEKV_HD const Scratch& scratch() const { return scratch_; }
  /// The policy's own numbers, per head: `Policy::registers(shape)` floats that start at 0.
  TERSEKV_HD float& reg(Index index) const { return registers_[index]; }

  TERSEKV_HD Index position(Index slot) const { return *position_at(slot); }
  TERSEKV_HD void set_position(Index slot, Index position) const {
    *position_at(slot) = static_cast<std::int32_t>(position);
  }
  /// Tokens the entry stands for; 1 where the policy does not merge.
  TERSEKV_HD float weight(Index slot) const {
    return layout_->has_weights ? *weight_at(slot) : 1.0f;
  }
  TERSEKV_HD void set_weight(Index slot, float weight) const { *weight_at(slot) = weight; }
  /// Statistic `column` of the entry.
  TERSEKV_HD float& stat(Index column, Index slot) const {
    return *reinterpret_cast<float*>(statistic_at(column, slot));
  }
  /// The same four bytes as an integer; a column is used as one or the other.
  TERSEKV_HD std::int32_t& int_stat(Index column, Index slot) const {
    return *reinterpret_cast<std::int32_t*>(statistic_at(column, slot));
  }

  TERSEKV_HD float key(Index slot, Index dim) const { return to_float(*key_at(slot, dim)); }
  TERSEKV_HD void set_key(Index slot, Index dim, float x) const {
    *key_at(slot, dim) = from_float<KeyCodec>(x);
  }
  /// The same for a key that was computed: what the storage cannot hold becomes its largest number.
  TERSEKV_HD void set_key_within(Index slot, Index dim, float x) const {
    constexpr float most = Codec<KeyCodec>::max_magnitude;
    set_key(slot, dim, x > most ? most : (x < -most ? -most : x));
  }
  TERSEKV_HD float value(Index slot, Index dim) const { return to_float(*value_at(slot, dim)); }
  TERSEKV_HD void set_value(Index slot, Index dim, float x) const {
    *value_at(slot, dim) = from_float<ValueCodec>(x);
  }

  /// Everything of entry `from` into slot `to`, whose content is lost. O(head_dim).
  TERSEKV_HD void copy_entry(Index from, Index to) const {
    for (Index j = 0; j < head_dim(); ++j) *key_at(to, j) = *key_at(from, j);
    for (Index j = 0; j < head_dim(); ++j) *value_at(to, j) = *value_at(from, j);
    if (layout_->has_weights) *weight_at(to) = *weight_at(from);
    *position_at(to) = *position_at(from);
    for (Index c = 0; c < layout_->statistics; ++c) {
      std::memcpy(statistic_at(c, to), statistic_at(c, from), 4);
    }
  }
  TERSEKV_HD void swap_entries(Index a, Index b) const {
    for (Index j = 0; j < head_dim(); ++j) swap(*key_at(a, j), *key_at(b, j));
    for (Index j = 0; j < head_dim(); ++j) swap(*value_at(a, j), *value_at(b, j));
    if (layout_->has_weights) swap(*weight_at(a), *weight_at(b));
    swap(*position_at(a), *position_at(b));
    for (Index c = 0; c < layout_->statistics; ++c) {
      std::byte kept[4];
      std::memcpy(kept, statistic_at(c, a), 4);
      std::memcpy(statistic_at(c, a), statistic_at(c, b), 4);
      std::memcpy(statistic_at(c, b), kept, 4);
    }
  }
  /// All statistics of the entry to 0, as a float and as an integer.
  TERSEKV_HD void clear_statistics(Index slot) const {
    for (Index c = 0; c < layout_->statistics; ++c) std::memset(statistic_at(c, slot), 0, 4);
  }

  /// Page `index` of the keys, [head_dim, page_size], and of the values, [page_size, head_dim].
  TERSEKV_HD const KeyCodec* key_page(Index index) const {
    return reinterpret_cast<const KeyCodec*>(pages_[index]);
  }
  TERSEKV_HD const ValueCodec* value_page(Index index) const {
    return reinterpret_cast<const ValueCodec*>(pages_[index] + layout_->values_at);
  }

 private:
  template <class T>
  TERSEKV_HD static void swap(T& a, T& b) {
    const T t = a;
    a = b;
    b = t;
  }
  TERSEKV_HD std::byte* page_of(Index slot) const { return pages_[slot >> layout_->shift]; }
  TERSEKV_HD Index in_page(Index slot) const { return slot & (layout_->page_size - 1); }
  template <class T>
  TERSEKV_HD T* column_at(Index offset, Index slot) const {
    return reinterpret_cast<T*>(page_of(slot) + offset) + in_page(slot);
  }
  TERSEKV_HD std::byte* statistic_at(Index column, Index slot) const {
    return page_of(slot) + layout_->statistics_at +
           4 * (layout_->page_size * column + in_page(slot));
  }
  TERSEKV_HD std::int32_t* position_at(Index slot) const {
    return column_at<std::int32_t>(layout_->positions_at, slot);
  }
  TERSEKV_HD float* weight_at(Index slot) const {
    return column_at<float>(layout_->weights_at, slot);
  }
  TERSEKV_HD KeyCodec* key_at(Index slot, Index dim) const {
    return reinterpret_cast<KeyCodec*>(page_of(slot)) + dim * layout_->page_size + in_page(slot);
  }
  TERSEKV_HD ValueCodec* value_at(Index slot, Index dim) const {
    return reinterpret_cast<ValueCodec*>(page_of(slot) + layout_->values_at) +
           in_page(slot) * layout_->head_dim + dim;
  }

  std::byte* const* pages_;
  const PageLayout* layout_;
  HeadState* state_;
  const Shape* shape_;
  float* registers_;
  Scratch scratch_;
};

}  // namespace tersekv
