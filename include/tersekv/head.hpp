// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tersekv/config.hpp"
#include "tersekv/element.hpp"
#include "tersekv/head_view.hpp"
#include "tersekv/portability.hpp"

namespace tersekv {

/// Scratch of one worker, large enough for the head it works on.
struct Scratch {
  float* floats = nullptr;        ///< [entries, rounded up to whole pages], for products
  float* vectors = nullptr;       ///< [kRows, head_dim], for keys
  std::int32_t* slots = nullptr;  ///< [kSlotLists, as many], for lists of slots
  static constexpr Index kSlotLists = 4, kRows = 3;

  /// kRows rows of `stride` floats, the head's entries rounded up to whole pages: the memory of all
  /// lists of slots but the first, which they overwrite.
  static_assert(kRows < kSlotLists && sizeof(float) == sizeof(std::int32_t));
  TERSEKV_HD float* rows(Index stride) const { return reinterpret_cast<float*>(slots + stride); }
};

/// One KV head's entries as a policy's bodies see them: what a `HeadView` reads, and all of it can
/// be written.
template <class KeyCodec, class ValueCodec>
class Head : public HeadView<KeyCodec, ValueCodec> {
  using View = HeadView<KeyCodec, ValueCodec>;

 public:
  using View::head_dim;

  TERSEKV_HD Head(std::byte* const* page_table, std::byte* const* column_table,
                  const PageLayout* page_layout, HeadState* head_state, const Shape* head_shape,
                  float* policy_registers, const Scratch& worker_scratch)
      : View(page_table, column_table, page_layout, head_state, head_shape, policy_registers),
        scratch_(worker_scratch) {}

  TERSEKV_HD HeadState& state() const { return View::mutable_state(); }
  TERSEKV_HD const Scratch& scratch() const { return scratch_; }
  TERSEKV_HD float& reg(Index index) const { return *View::register_at(index); }
  TERSEKV_HD void set_int_reg(Index index, std::int32_t x) const {
    std::memcpy(View::register_at(index), &x, sizeof x);
  }
  template <class Slot>
  TERSEKV_HD float& stat(Index column, Slot slot) const {
    return *reinterpret_cast<float*>(View::statistic_at(column, slot));
  }
  template <class Slot>
  TERSEKV_HD std::int32_t& int_stat(Index column, Slot slot) const {
    return *reinterpret_cast<std::int32_t*>(View::statistic_at(column, slot));
  }

  template <bool whole, class Floats = simd::Floats>
  TERSEKV_HD Floats stat(Index column, const SlotVector<whole>& slots) const {
    return View::stat(column, slots);
  }
  template <bool whole, class Ints = simd::Ints>
  TERSEKV_HD Ints int_stat(Index column, const SlotVector<whole>& slots) const {
    return View::int_stat(column, slots);
  }
  /// x, a float or an integer, for `column` of the entry; vectors of them where a SlotVector says
  /// of which entries.
  template <class Slot, class T>
  TERSEKV_HD void set_stat(Index column, const Slot& slot, T x) const {
    static_assert(sizeof x == 4);
    *reinterpret_cast<T*>(View::statistic_at(column, slot)) = x;
  }
  template <bool whole, class T>
  TERSEKV_HD void set_stat(Index column, const SlotVector<whole>& slots, const T& x) const {
    // A number alone would fill one lane: `element_at` reads those of several slots from an array.
    static_assert(sizeof x == 4 * std::size_t{simd::kLanes}, "expected a vector, got a number");
    std::byte* to = View::statistic_at(column, slots.first);
    if constexpr (whole) {
      // As the type it is: the compiler then knows what it leaves as it was, as the head's
      // pointers.
      using Anywhere [[gnu::aligned(4)]] = T;
      *reinterpret_cast<Anywhere*>(to) = x;
    } else {
      std::memcpy(to, &x, slots.live_bytes());
    }
  }

  TERSEKV_HD void set_position(Index slot, Index position) const {
    *View::position_at(slot) = static_cast<std::int32_t>(position);
  }
  TERSEKV_HD void set_weight(Index slot, float weight) const { *View::weight_at(slot) = weight; }
  /// One element, where elements stand for themselves; else a key or value is written as a whole.
  TERSEKV_HD void set_key(Index slot, Index dim, float x) const requires(!Codec<KeyCodec>::scaled) {
    *View::key_at(slot, dim) = from_float<KeyCodec>(x);
  }
  TERSEKV_HD void set_value(Index slot, Index dim, float x) const
      requires(!Codec<ValueCodec>::scaled) {
    *View::value_at(slot, dim) = from_float<ValueCodec>(x);
  }
#if defined(__CUDACC__)  // f may be the host's alone, where the host calls
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20013, 20014, 20015
#endif
  /// A whole key, f(dim) its elements; f may read the same element of the same key, and of the
  /// scratch's first vector, which scaled codecs overwrite. By one lane: parts of policies use a
  /// team's `write_key`.
  template <class F>
  TERSEKV_HD void write_key(Index slot, F&& f) const {
    if constexpr (Codec<KeyCodec>::scaled) {
      constexpr Index pack = Codec<KeyCodec>::pack;
      const Index step = View::page_size() * pack;
      KeyCodec* key = View::key_at(slot, 0);
      for (Index j = 0; j < head_dim(); ++j) scratch_.vectors[j] = f(j);
      *View::key_scale_at(slot) = to_int8(scratch_.vectors, head_dim(), [&](Index j, KeyCodec x) {
        key[j / pack * step + j % pack] = x;
      });
    } else {
      KeyCodec* key = View::key_at(slot, 0);
      const Index dims = head_dim(), step = View::page_size();
      for (Index j = 0; j < dims; ++j) key[j * step] = from_float<KeyCodec>(f(j));
    }
  }
  template <class F>
  TERSEKV_HD void write_value(Index slot, F&& f) const {
    if constexpr (Codec<ValueCodec>::scaled) {
      ValueCodec* value = View::value_at(slot, 0);
      for (Index j = 0; j < head_dim(); ++j) scratch_.vectors[j] = f(j);
      *View::value_scale_at(slot) =
          to_int8(scratch_.vectors, head_dim(),
                  [&](Index j, ValueCodec x) { value[j * Codec<ValueCodec>::pack] = x; });
    } else {
      ValueCodec* value = View::value_at(slot, 0);
      const Index dims = head_dim();
      for (Index j = 0; j < dims; ++j) value[j] = from_float<ValueCodec>(f(j));
    }
  }
#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
  /// A number that was computed, as a key can hold it: what is beyond becomes the largest.
  TERSEKV_HD static float within_key(float x) { return within<KeyCodec>(x); }

  /// Everything of entry `from` into slot `to`, another, whose content is lost. O(head_dim).
  TERSEKV_HD void copy_entry(Index from, Index to) const {
    // Keys lie a page apart, dimension by dimension. What a store might change is read but once.
    constexpr Index key_pack = Codec<KeyCodec>::pack, value_pack = Codec<ValueCodec>::pack;
    const Index dims = head_dim(), key_step = View::page_size() * key_pack;
    const KeyCodec* key = View::key_at(from, 0);
    KeyCodec* new_key = View::key_at(to, 0);
    for (Index j = 0; j < dims; j += key_pack, key += key_step, new_key += key_step) {
      for (Index b = 0; b < key_pack; ++b) new_key[b] = key[b];
    }
    const ValueCodec* value = View::value_at(from, 0);
    ValueCodec* new_value = View::value_at(to, 0);
    if constexpr (value_pack == 1) {
      std::memcpy(new_value, value, static_cast<std::size_t>(dims) * sizeof(ValueCodec));
    } else {
      for (Index j = 0; j < dims; ++j) new_value[j * value_pack] = value[j * value_pack];
    }
    copy_numbers(from, to);
    for (Index c = 0; c < View::num_statistics(); ++c) copy_statistic(from, to, c);
  }
  /// Element `dim` of the key and of the value of entry `from` into those of slot `to`.
  TERSEKV_HD void copy_element(Index from, Index to, Index dim) const {
    *View::key_at(to, dim) = *View::key_at(from, dim);
    *View::value_at(to, dim) = *View::value_at(from, dim);
  }
  /// All of an entry but its key, its value and its statistics.
  TERSEKV_HD void copy_numbers(Index from, Index to) const {
    if constexpr (Codec<KeyCodec>::scaled) *View::key_scale_at(to) = *View::key_scale_at(from);
    if constexpr (Codec<ValueCodec>::scaled) {
      *View::value_scale_at(to) = *View::value_scale_at(from);
    }
    if (View::layout().has_weights) *View::weight_at(to) = *View::weight_at(from);
    *View::position_at(to) = *View::position_at(from);
  }
  TERSEKV_HD void copy_statistic(Index from, Index to, Index column) const {
    copy_word(View::statistic_at(column, to), View::statistic_at(column, from));
  }
  TERSEKV_HD void swap_entries(Index a, Index b) const {
    for (Index j = 0; j < head_dim(); ++j) swap(*View::key_at(a, j), *View::key_at(b, j));
    for (Index j = 0; j < head_dim(); ++j) swap(*View::value_at(a, j), *View::value_at(b, j));
    if constexpr (Codec<KeyCodec>::scaled) swap(*View::key_scale_at(a), *View::key_scale_at(b));
    if constexpr (Codec<ValueCodec>::scaled) {
      swap(*View::value_scale_at(a), *View::value_scale_at(b));
    }
    if (View::layout().has_weights) swap(*View::weight_at(a), *View::weight_at(b));
    swap(*View::position_at(a), *View::position_at(b));
    for (Index c = 0; c < View::num_statistics(); ++c) {
      alignas(4) std::byte kept[4];
      copy_word(kept, View::statistic_at(c, a));
      copy_word(View::statistic_at(c, a), View::statistic_at(c, b));
      copy_word(View::statistic_at(c, b), kept);
    }
  }
  /// All statistics of the entry to 0, as a float and as an integer.
  TERSEKV_HD void clear_statistics(Index slot) const {
    for (Index c = 0; c < View::layout().statistics; ++c) {
      std::memset(View::statistic_at(c, slot), 0, 4);
    }
  }

 private:
  /// What a statistic is, a float or an integer, is not known here: only that it lies as one.
  TERSEKV_HD static void copy_word(std::byte* to, const std::byte* from) {
    std::memcpy(__builtin_assume_aligned(to, 4), __builtin_assume_aligned(from, 4), 4);
  }
  template <class T>
  TERSEKV_HD static void swap(T& a, T& b) {
    const T t = a;
    a = b;
    b = t;
  }

  Scratch scratch_;
};

}  // namespace tersekv
