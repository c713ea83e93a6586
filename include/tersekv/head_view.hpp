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
#include "tersekv/page_layout.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/simd.hpp"

namespace tersekv {

namespace detail {
/// Heads of so many entries are no longer in the second-level cache when their turn comes.
inline constexpr Index kFarEntries = 2048;
inline constexpr Index kFarBytes = 256 << 10, kFarBlock = 64;  ///< by bytes: see is_far
inline constexpr Index kFarFloatBytes = 2 << 20;               ///< on a Skylake: see is_far
/// And those of so many may have left the last level, and take longer.
inline constexpr Index kMemoryEntries = 16384;
/// By so many entries columns are asked for before they are read, where that is said by entry.
inline constexpr Index kAskedEntries = 512;
}  // namespace detail

/// A slot whose page has been looked up: what loops over all entries of a head hand to their
/// bodies, so that the compiler sees columns that lie side by side. Wherever a slot's number is
/// wanted, it is one.
struct PageSlot {
  const std::byte *page = nullptr, *columns = nullptr;           ///< its two parts
  Index first = 0;                                               ///< the page's first slot
  Index in_page = 0;                                             ///< the slot within the page
  TERSEKV_HD operator Index() const { return first + in_page; }  // NOLINT: implicit by design
  /// The slot `entries` on, in the same page.
  TERSEKV_HD PageSlot plus(Index entries) const {
    return {page, columns, first, in_page + entries};
  }
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
/// 1 for `first` and the slots behind it, else 0.
TERSEKV_HD inline std::int32_t from_slot(Index slot, Index first) { return slot >= first ? 1 : 0; }
template <bool whole, class Ints = simd::Ints>
TERSEKV_HD inline Ints from_slot(const SlotVector<whole>& slots, Index first) {
  return -(simd::lane_numbers() >= static_cast<std::int32_t>(first - slots));
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

  TERSEKV_HD HeadView(std::byte* const* page_table, std::byte* const* column_table,
                      const PageLayout* page_layout, HeadState* head_state, const Shape* head_shape,
                      float* policy_registers)
      : pages_(page_table),
        columns_(column_table),
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
    return {pages_[index], columns_[index], index << layout_->shift, 0};
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

  /// Asks for the positions of page `index` and its statistics. Where those are many, who comes for
  /// them wants a few, and asks for those (`ask_for_stat`) but the first. Not for weights: few
  /// loops read them, and those say so (detail::AskedColumns).
  void ask_for_columns(Index index) const { ask_for_first_columns<3>(index); }
  /// Where columns are many: asks for statistic `column` of slots that a loop over all comes to
  /// later. Nothing to who has no vectors.
  template <bool whole>
  void ask_for_stat(Index column, const SlotVector<whole>& slots) const {
    const Index later = slots + detail::kAskedEntries;
    if (later >= state_->length || has_few_columns()) return;
    simd::ask<3>(statistic_at(column, later), Index{sizeof(simd::Floats)});
  }
  TERSEKV_HD void ask_for_stat(Index, Index) const {}
  /// Asks for statistic `column` of all entries, to be read soon.
  void ask_for_column(Index column) const {
    for (Index slot = 0; slot < state_->length; slot += layout_->page_size) {
      simd::ask<2>(statistic_at(column, slot), layout_->column_bytes);
    }
  }
  /// Asks for what lies between the keys of page `index` and its values: scales and weights.
  void ask_for_scales(Index index) const {
    const Index at = layout_->key_scales_at;
    simd::ask<3>(pages_[index] + at, layout_->values_at - at);
  }
  /// Asks for columns of page `index`, the first ones where they are many, into the second-level
  /// cache: attention, for the policy that comes for them later.
  void ask_for_columns_later(Index index) const { ask_for_first_columns<2>(index); }
  /// Between the values of page `index` and the keys of the next, for who reads all pages in order.
  /// Where they follow, asks for the page's columns, which a policy comes for later. Else reads
  /// what lies between, if that is little, which keeps the processor's own prefetching going, or
  /// asks for the first of those keys.
  void read_on(Index index) const {
    const std::byte *end = pages_[index] + layout_->columns_at, *next = pages_[index + 1];
    const auto gap = reinterpret_cast<std::intptr_t>(next) - reinterpret_cast<std::intptr_t>(end);
    const Index own = layout_->page_bytes - layout_->columns_at;  // of the gap, if it has its own
    if (gap == 0) {
      ask_for_columns_later(index);
    } else if (gap < own || gap > own + 256 || 4 * own > layout_->columns_at) {
      simd::ask<2>(next, std::min<Index>(8192, layout_->values_at));
    } else if constexpr (simd::kZen == 5) {  // which asks for pages itself, and need not wait
      simd::ask<2>(end, own);
    } else {
      simd::touch(end, own);
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
  /// The policy's own numbers, per head: `Policy::registers(shape)` of four bytes that start at 0.
  TERSEKV_HD float reg(Index index) const { return *register_at(index); }
  /// The same four bytes as an integer; a register is used as one or the other.
  TERSEKV_HD std::int32_t int_reg(Index index) const {
    std::int32_t x;
    std::memcpy(&x, register_at(index), sizeof x);
    return x;
  }

 protected:
  static constexpr Index kFewColumnBytes = 2048;  // of a page

  bool has_few_columns() const {
    return layout_->columns() * layout_->column_bytes <= kFewColumnBytes;
  }
  template <int locality>
  void ask_for_first_columns(Index index) const {
    const std::byte* column = columns_[index];
    const Index columns = has_few_columns() ? layout_->columns() : 2;
    const Index bytes = layout_->column_bytes, stride = layout_->column_stride;
    if (stride == bytes) {
      simd::ask<locality>(column, columns * bytes);
    } else {
      for (Index c = 0; c < columns; ++c) simd::ask<locality>(column + c * stride, bytes);
    }
  }
  template <class Slot>
  TERSEKV_HD std::byte* statistic_at(Index column, Slot slot) const {
    check(column, layout_->statistics, "a statistic that statistics(shape) counts");
    return columns_of(slot) + layout_->statistics_at + layout_->column_stride * column +
           4 * place_of(slot);
  }
  TERSEKV_HD float* register_at(Index index) const {
    check(index, layout_->registers, "a register that registers(shape) counts");
    return registers_ + index;
  }
  template <class Slot>
  TERSEKV_HD std::int32_t* position_at(Slot slot) const {
    return reinterpret_cast<std::int32_t*>(columns_of(slot) + layout_->positions_at) +
           place_of(slot);
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
    throw std::logic_error(detail::text(
        {"tersekv: policy part: expected ", expected, " (of ", count, "), got index ", index}));
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
  TERSEKV_HD std::byte* columns_of(Index slot) const {
    check(slot, state_->length, "a live slot");
    return columns_[page_index(slot)];
  }
  TERSEKV_HD std::byte* columns_of(const PageSlot& slot) const {
    check(slot, state_->length, "a live slot");
    return const_cast<std::byte*>(slot.columns);
  }
  TERSEKV_HD Index place_of(Index slot) const { return in_page(slot); }
  TERSEKV_HD Index place_of(const PageSlot& slot) const { return slot.in_page; }
  template <class T, class Slot>
  TERSEKV_HD T* column_at(Index offset, Slot slot) const {
    return reinterpret_cast<T*>(page_of(slot) + offset) + place_of(slot);
  }

  std::byte *const *pages_, *const *columns_;
  const PageLayout* layout_;
  HeadState* state_;
  const Shape* shape_;
  float* registers_;
};

}  // namespace tersekv
