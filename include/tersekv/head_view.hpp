// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/head_state.hpp"
#include "tersekv/int8.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

/// Where the columns of a page lie, in bytes from its start. A page holds `page_size` entries:
///
///   keys          [head_dim, page_size]   KeyCodec; d-major, so that the logits of a page need no
///                                         horizontal sums; Int8: [head_dim / 4 rounded up,
///                                         page_size, 4]
///   key scales    [page_size]             float, only if KeyCodec is scaled
///   value scales  [page_size]             float, only if ValueCodec is scaled
///   weights       [page_size]             float, only if the policy merges
///   values        [page_size, head_dim]   ValueCodec; Int8: [page_size / 4, head_dim, 4]
///   positions     [page_size]             int32
///   statistics    [statistics, page_size] 4 bytes each, the policy's
///
/// Up to the values that is the order in which attention reads them: who fetches ahead along memory
/// has all it wants.
struct PageLayout {
  Index page_size = 0, head_dim = 0, statistics = 0;
  Index registers = 0;                   ///< the policy's numbers per head, beside the pages
  int shift = 0;                         ///< log2(page_size)
  Index key_bytes = 0, value_bytes = 0;  ///< of one entry's, its scale included
  bool has_weights = false;
  Index key_scales_at = 0, values_at = 0, value_scales_at = 0, weights_at = 0, positions_at = 0,
        statistics_at = 0, page_bytes = 0;

  PageLayout() = default;  // no aggregate: fields in parentheses would be taken in any order

  template <class KeyCodec, class ValueCodec>
  static PageLayout of(Index page_size, Index head_dim, bool has_weights, Index statistics,
                       Index registers) {
    PageLayout l;
    l.page_size = page_size;
    l.head_dim = head_dim;
    l.statistics = statistics;
    l.registers = registers;
    while ((Index{1} << l.shift) < page_size) ++l.shift;
    constexpr Index pack = Codec<KeyCodec>::pack;
    const Index key = (head_dim + pack - 1) / pack * pack * Index{sizeof(KeyCodec)};
    const Index value = head_dim * Index{sizeof(ValueCodec)};
    l.key_bytes = key + (Codec<KeyCodec>::scaled ? 4 : 0);
    l.value_bytes = value + (Codec<ValueCodec>::scaled ? 4 : 0);
    l.has_weights = has_weights;
    l.key_scales_at = page_size * key;
    l.value_scales_at = page_size * l.key_bytes;
    l.weights_at = l.value_scales_at + page_size * (l.value_bytes - value);
    l.values_at = l.weights_at + (has_weights ? 4 * page_size : 0);
    l.positions_at = l.values_at + page_size * value;
    l.statistics_at = l.positions_at + 4 * page_size;
    l.page_bytes = (l.statistics_at + 4 * page_size * statistics + 63) / 64 * 64;
    return l;
  }
  /// Of positions and statistics.
  TERSEKV_HD Index column_bytes() const { return page_bytes - positions_at; }
};

namespace detail {
/// Heads of so many entries are no longer in the second-level cache when their turn comes.
inline constexpr Index kFarEntries = 2048;
inline constexpr Index kFarBytes = 256 << 10, kFarBlock = 64;  ///< of keys and values; entries
/// And those of so many may have left the last level, and take longer.
inline constexpr Index kMemoryEntries = 16384;
/// By so many entries columns are asked for before they are read, where that is said by entry.
inline constexpr Index kAskedEntries = 512;
}  // namespace detail

/// A slot whose page has been looked up: what loops over all entries of a head hand to their
/// bodies, so that the compiler sees columns that lie side by side. Wherever a slot's number is
/// wanted, it is one.
struct PageSlot {
  const std::byte* page = nullptr;
  Index first = 0;                                               ///< the page's first slot
  Index in_page = 0;                                             ///< the slot within the page
  TERSEKV_HD operator Index() const { return first + in_page; }  // NOLINT: implicit by design
  /// The slot `entries` on, in the same page.
  TERSEKV_HD PageSlot plus(Index entries) const { return {page, first, in_page + entries}; }
};

/// Neighbouring slots of a page, as many as a vector of floats has lanes, or, if not `whole`, the
/// first `live` of so many: what is read through it are vectors, and only those lanes are written.
/// As an Index, the first of them. (What gives vectors is a template of their type throughout:
/// CUDA's compiler accepts none in what a device might call.)
template <bool whole>
struct SlotVector {
  PageSlot first;
  Index live = simd::kLanes;
  TERSEKV_HD operator Index() const { return first; }  // NOLINT: implicit by design
  TERSEKV_HD std::size_t live_bytes() const {
    return 4 * static_cast<std::size_t>(whole ? Index{simd::kLanes} : live);
  }
};

/// Element `slot` of an array over a head's slots, as attention rows are, or the elements that a
/// SlotVector means, as a vector: for bodies that take either.
template <class T>
TERSEKV_HD inline T element_at(const T* array, Index slot) {
  return array[slot];
}
template <bool whole, class Floats = simd::Floats>
TERSEKV_HD inline Floats element_at(const float* array, const SlotVector<whole>& slots) {
  Floats v = {};
  std::memcpy(&v, array + slots.first, slots.live_bytes());
  return v;
}

namespace detail {

/// Whether they are other slots.
TERSEKV_HD inline bool is_not(Index slot, Index other) { return slot != other; }
template <bool whole, class Ints = simd::Ints>
TERSEKV_HD inline Ints is_not(const SlotVector<whole>& slots, Index other) {
  return simd::lane_numbers() != static_cast<std::int32_t>(other - slots);
}

}  // namespace detail

/// One KV head's entries, to be read: a reference, cheap to copy, that gives floats whatever the
/// storage. Slots [0, length) are live, in no particular order.
///
/// An engine's own attention kernel reads `key_page`, `value_page`, the scales of both where codecs
/// are scaled, and `weight`; its logits are
/// scale <q, k_i> + alpha ln w_i, with the policy's `alpha()`.
///
/// A slot is an Index or a PageSlot; numbers of an entry can be read as vectors by a SlotVector.
///
/// With TERSEKV_CHECKED defined, a statistic or register that the policy has not asked for, and a
/// slot or element beyond the head, throw std::logic_error: for those who write policies.
template <class KeyCodec, class ValueCodec>
class HeadView {
 public:
  using Key = KeyCodec;
  using Value = ValueCodec;

  TERSEKV_HD HeadView(std::byte* const* page_table, const PageLayout* page_layout,
                      HeadState* head_state, const Shape* head_shape, float* policy_registers)
      : pages_(page_table),
        layout_(page_layout),
        state_(head_state),
        shape_(head_shape),
        registers_(policy_registers) {}

  TERSEKV_HD Index length() const { return state_->length; }
  TERSEKV_HD Index tokens_seen() const { return state_->seen; }
  TERSEKV_HD Index budget() const { return state_->budget; }
  TERSEKV_HD Index head_dim() const { return layout_->head_dim; }
  TERSEKV_HD Index page_size() const { return layout_->page_size; }
  /// Where a slot lies: its page, and its place there. Pages being powers of two, without division.
  TERSEKV_HD Index page_index(Index slot) const { return slot >> layout_->shift; }
  TERSEKV_HD Index in_page(Index slot) const { return slot & (layout_->page_size - 1); }
  TERSEKV_HD const Shape& shape() const { return *shape_; }
  TERSEKV_HD const HeadState& state() const { return *state_; }

  /// The first slot of page `index`.
  TERSEKV_HD PageSlot page_slot(Index index) const {
    check(index << layout_->shift, state_->length, "a page with live slots");
    return {pages_[index], index << layout_->shift, 0};
  }

  template <class Slot>
  TERSEKV_HD Index position(Slot slot) const {
    return *position_at(slot);
  }
  template <bool whole, class Ints = simd::Ints>
  TERSEKV_HD Ints position(const SlotVector<whole>& slots) const {
    return vector_at<Ints>(position_at(slots.first));
  }
  TERSEKV_HD bool has_weights() const { return layout_->has_weights; }
  /// Tokens the entry stands for; 1 where the policy does not merge.
  template <class Slot>
  TERSEKV_HD float weight(Slot slot) const {
    return layout_->has_weights ? *weight_at(slot) : 1.0f;
  }
  template <bool whole, class Floats = simd::Floats>
  TERSEKV_HD Floats weight(const SlotVector<whole>& slots) const {
    return layout_->has_weights ? vector_at<Floats>(weight_at(slots.first)) : Floats{} + 1.0f;
  }
  TERSEKV_HD float key(Index slot, Index dim) const {
    const float stored = to_float(*key_at(slot, dim));
    if constexpr (Codec<KeyCodec>::scaled) return stored * *key_scale_at(slot);
    return stored;
  }
  TERSEKV_HD float value(Index slot, Index dim) const {
    const float stored = to_float(*value_at(slot, dim));
    if constexpr (Codec<ValueCodec>::scaled) return stored * *value_scale_at(slot);
    return stored;
  }

  /// Page `index` of the keys and of the values, laid out as `PageLayout` says.
  /// Slot i is entry i % page_size of page i / page_size; what lies beyond the last live slot is
  /// arbitrary.
  TERSEKV_HD const KeyCodec* key_page(Index index) const {
    return reinterpret_cast<const KeyCodec*>(pages_[index]);
  }
  TERSEKV_HD const ValueCodec* value_page(Index index) const {
    return reinterpret_cast<const ValueCodec*>(pages_[index] + layout_->values_at);
  }

  /// The scales of the page's keys and values, [page_size]; only for codecs that are scaled.
  TERSEKV_HD const float* key_scale_page(Index index) const requires(Codec<KeyCodec>::scaled) {
    return reinterpret_cast<const float*>(pages_[index] + layout_->key_scales_at);
  }
  TERSEKV_HD const float* value_scale_page(Index index) const requires(Codec<ValueCodec>::scaled) {
    return reinterpret_cast<const float*>(pages_[index] + layout_->value_scales_at);
  }
  /// The weights of page `index`, [page_size]; only where the policy merges.
  TERSEKV_HD const float* weight_page(Index index) const {
    return reinterpret_cast<const float*>(pages_[index] + layout_->weights_at);
  }

  /// Asks for the weights of page `index`, its positions and its statistics. Where those are many,
  /// who comes for them wants a few, and asks for those (`ask_for_stat`) but the first.
  void ask_for_columns(Index index) const {
    const Index all = layout_->column_bytes(), column = 4 * layout_->page_size;
    if (layout_->has_weights) simd::ask<3>(pages_[index] + layout_->weights_at, column);
    simd::ask<3>(pages_[index] + layout_->positions_at, all <= kFewColumnBytes ? all : 2 * column);
  }
  /// Where columns are many: asks for statistic `column` of slots that a loop over all comes to
  /// later. Nothing to who has no vectors.
  template <bool whole>
  void ask_for_stat(Index column, const SlotVector<whole>& slots) const {
    const Index later = slots + detail::kAskedEntries;
    if (later >= state_->length || layout_->column_bytes() <= kFewColumnBytes) return;
    simd::ask<3>(statistic_at(column, later), Index{sizeof(simd::Floats)});
  }
  TERSEKV_HD void ask_for_stat(Index, Index) const {}
  /// Asks for statistic `column` of all entries, to be read soon.
  void ask_for_column(Index column) const {
    for (Index slot = 0; slot < state_->length; slot += layout_->page_size) {
      simd::ask<2>(statistic_at(column, slot), 4 * layout_->page_size);
    }
  }
  /// Asks for what lies between the keys of page `index` and its values: scales and weights.
  void ask_for_scales(Index index) const {
    const Index at = layout_->key_scales_at;
    simd::ask<3>(pages_[index] + at, layout_->values_at - at);
  }
  /// Between the values of page `index` and the keys of the next, for who reads all pages in order:
  /// reads what lies between where that is little, and keeps the processor's own prefetching going;
  /// elsewhere asks for the first of those keys.
  void read_on(Index index) const {
    const std::byte *here = pages_[index], *next = pages_[index + 1];
    const auto gap = reinterpret_cast<std::intptr_t>(next) - reinterpret_cast<std::intptr_t>(here) -
                     layout_->page_bytes;
    if (gap >= 0 && gap <= 256 && 4 * layout_->column_bytes() <= layout_->positions_at) {
      const std::byte* columns = here + layout_->positions_at;
      if constexpr (simd::kZen == 5) {  // which asks for pages itself, and need not wait
        simd::ask<2>(columns, layout_->column_bytes());
      } else {
        simd::touch(columns, layout_->column_bytes());
      }
    } else {
      simd::ask<2>(next, std::min<Index>(8192, layout_->values_at));
    }
  }

  TERSEKV_HD Index num_statistics() const { return layout_->statistics; }
  /// Statistic `column` of the entry, one of `num_statistics()`.
  template <class Slot>
  TERSEKV_HD float stat(Index column, Slot slot) const {
    return *reinterpret_cast<const float*>(statistic_at(column, slot));
  }
  /// The same four bytes as an integer; a column is used as one or the other.
  template <class Slot>
  TERSEKV_HD std::int32_t int_stat(Index column, Slot slot) const {
    return *reinterpret_cast<const std::int32_t*>(statistic_at(column, slot));
  }
  template <bool whole, class Floats = simd::Floats>
  TERSEKV_HD Floats stat(Index column, const SlotVector<whole>& slots) const {
    return vector_at<Floats>(statistic_at(column, slots.first));
  }
  template <bool whole, class Ints = simd::Ints>
  TERSEKV_HD Ints int_stat(Index column, const SlotVector<whole>& slots) const {
    return vector_at<Ints>(statistic_at(column, slots.first));
  }
  /// The policy's own numbers, per head: `Policy::registers(shape)` floats that start at 0.
  TERSEKV_HD float reg(Index index) const { return *register_at(index); }

 protected:
  static constexpr Index kFewColumnBytes = 2048;  // of a page

  template <class Slot>
  TERSEKV_HD std::byte* statistic_at(Index column, Slot slot) const {
    check(column, layout_->statistics, "a statistic that statistics(shape) counts");
    return page_of(slot) + layout_->statistics_at +
           4 * (layout_->page_size * column + place_of(slot));
  }
  TERSEKV_HD float* register_at(Index index) const {
    check(index, layout_->registers, "a register that registers(shape) counts");
    return registers_ + index;
  }
  template <class Slot>
  TERSEKV_HD std::int32_t* position_at(Slot slot) const {
    return column_at<std::int32_t>(layout_->positions_at, slot);
  }
  template <class Slot>
  TERSEKV_HD float* weight_at(Slot slot) const {
    return column_at<float>(layout_->weights_at, slot);
  }
  TERSEKV_HD KeyCodec* key_at(Index slot, Index dim) const {
    check(dim, layout_->head_dim, "an element below head_dim");
    constexpr Index pack = Codec<KeyCodec>::pack;
    const Index at = (dim / pack * layout_->page_size + in_page(slot)) * pack + dim % pack;
    return reinterpret_cast<KeyCodec*>(page_of(slot)) + at;
  }
  TERSEKV_HD ValueCodec* value_at(Index slot, Index dim) const {
    check(dim, layout_->head_dim, "an element below head_dim");
    constexpr Index pack = Codec<ValueCodec>::pack;
    const Index i = in_page(slot);
    return reinterpret_cast<ValueCodec*>(page_of(slot) + layout_->values_at) +
           (i / pack * layout_->head_dim + dim) * pack + i % pack;
  }
  TERSEKV_HD float* key_scale_at(Index slot) const {
    return column_at<float>(layout_->key_scales_at, slot);
  }
  TERSEKV_HD float* value_scale_at(Index slot) const {
    return column_at<float>(layout_->value_scales_at, slot);
  }
  TERSEKV_HD const PageLayout& layout() const { return *layout_; }
  TERSEKV_HD HeadState& mutable_state() const { return *state_; }

 private:
  /// A column has room for whole vectors.
  template <class Vector>
  TERSEKV_HD static Vector vector_at(const void* column) {
    Vector v;
    std::memcpy(&v, column, sizeof v);
    return v;
  }
  TERSEKV_HD static void check([[maybe_unused]] Index index, [[maybe_unused]] Index count,
                               [[maybe_unused]] const char* expected) {
#if defined(TERSEKV_CHECKED) && !defined(__CUDA_ARCH__)
    if (index >= 0 && index < count) return;
    throw std::logic_error(detail::text("tersekv: policy part: expected ", expected, " (of ", count,
                                        "), got index ", index));
#endif
  }
  TERSEKV_HD std::byte* page_of(Index slot) const {
    check(slot, state_->length, "a live slot");
    return pages_[page_index(slot)];
  }
  TERSEKV_HD std::byte* page_of(const PageSlot& slot) const {
    check(slot, state_->length, "a live slot");
    return const_cast<std::byte*>(
        slot.page);  // public functions only read, those of Head may write
  }
  TERSEKV_HD Index place_of(Index slot) const { return in_page(slot); }
  TERSEKV_HD Index place_of(const PageSlot& slot) const { return slot.in_page; }
  template <class T, class Slot>
  TERSEKV_HD T* column_at(Index offset, Slot slot) const {
    return reinterpret_cast<T*>(page_of(slot) + offset) + place_of(slot);
  }

  std::byte* const* pages_;
  const PageLayout* layout_;
  HeadState* state_;
  const Shape* shape_;
  float* registers_;
};

}  // namespace tersekv
