// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>

#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/list.hpp"
#include "tersekv/page_pool.hpp"
#include "tersekv/page_tables.hpp"

namespace tersekv::detail {

/// Sums over the states of a cache's heads, wherever they lie.
template <class States>
Counts total_counts(const States& states) {
  Counts total;
  for (const HeadState& state : states) {
    total.evictions += state.counts.evictions;
    total.merges += state.counts.merges;
  }
  return total;
}
/// Live entries over tokens seen; 1 where none was.
template <class States>
double keep_ratio(const States& states) {
  double kept = 0, seen = 0;
  for (const auto& state : states) {
    kept += static_cast<double>(state.length);
    seen += static_cast<double>(state.seen);
  }
  return seen == 0 ? 1.0 : kept / seen;
}

/// The memory of a cache: for every (sequence, KV head) a state, tables of its pages' two parts and
/// the policy's registers. Heads grow and shrink on their own; pages come from and go back to a
/// pool.
template <class KeyCodec, class ValueCodec>
class HeadStore {
 public:
  /// `shared` may be null: the store then has a pool of its own on `resource`.
  HeadStore(Index heads, const PageLayout& layout, PagePool* shared,
            std::pmr::memory_resource* resource)
      : layout_(layout),
        own_pool_(shared == nullptr ? std::make_unique<PagePool>(resource) : nullptr),
        pool_(shared == nullptr ? own_pool_.get() : shared),
        states_(pool_->resource(), heads),
        tables_(pool_->resource(), heads),
        registers_(pool_->resource(), heads * layout.registers) {
    pool_->set_page_bytes(layout.page_bytes, layout.columns(), layout.column_bytes);
    layout_ = layout.in_blocks_of(pool_->block_pages());
  }
  HeadStore(HeadStore&&) = default;
  HeadStore& operator=(HeadStore&&) = delete;
  ~HeadStore() {
    for (Index h = 0; h < heads(); ++h) {
      states_[h].length = 0;
      shrink(h);
    }
  }

  Index heads() const { return states_.size(); }
  const PageLayout& layout() const { return layout_; }
  PagePool& pool() const { return *pool_; }
  HeadState& state(Index head) { return states_[head]; }
  const HeadState& state(Index head) const { return states_[head]; }

  /// Entries of the longest of `count` heads from `first` on.
  Index longest(Index first, Index count) const {
    Index most = 0;
    for (Index h = first; h < first + count; ++h) most = std::max(most, states_[h].length);
    return most;
  }

  /// Entries of `count` heads from `first` on.
  Index entries(Index first, Index count) const {
    Index sum = 0;
    for (Index h = first; h < first + count; ++h) sum += states_[h].length;
    return sum;
  }

  Counts total_counts() const { return detail::total_counts(states_); }
  double keep_ratio() const { return detail::keep_ratio(states_); }

  /// Pages for `entries` entries, and those that complete a run. Throws std::bad_alloc; `shrink`
  /// then takes back what was added.
  void reserve(Index head, Index entries) {
    const Index pages = pages_for(entries);
    if (tables_.size(head) >= pages) return;
    const Index run = pages_in_runs(head, entries);
    tables_.reserve(head, run);
    while (tables_.size(head) < pages) add_page(head);
    try {
      while (tables_.size(head) < run) add_page(head);
    } catch (const std::bad_alloc&) {  // what is needed is there
    }
  }

  /// Pages that hold no live entry, nor complete a run, back to the pool.
  void shrink(Index head) noexcept {
    const Index pages = pages_in_runs(head, states_[head].length);
    while (tables_.size(head) > pages) pool_->give(tables_.pop_back(head));
  }

  /// Takes the latest tokens back, which hold the last slots.
  void rewind(Index head, Index tokens) noexcept {
    states_[head].length -= tokens;
    states_[head].note_rewind(tokens);
    shrink(head);
  }

  /// As if nothing had ever been appended; the budget stays.
  void clear(Index head) noexcept {
    const Index budget = states_[head].budget;
    states_[head] = HeadState{};
    states_[head].budget = budget;
    std::fill_n(registers_.data() + head * layout_.registers, layout_.registers, 0.0f);
    shrink(head);
  }

  /// Page `index` of the head, its column `column`, and its registers, for copies to and from
  /// elsewhere.
  std::byte* page(Index head, Index index) const { return tables_.pages(head)[index]; }
  std::byte* column(Index head, Index index, Index column) const {
    return tables_.columns(head)[index] + column * layout_.column_stride;
  }
  float* registers(Index head) { return registers_.data() + head * layout_.registers; }

  PageTable pages(Index head) const {
    return {tables_.pages(head), static_cast<std::size_t>(tables_.size(head))};
  }
  /// A reference to the head for the policy to work on.
  Head<KeyCodec, ValueCodec> head(Index head, const Shape& shape, const Scratch& scratch) {
    return {tables_.pages(head),
            tables_.columns(head),
            &layout_,
            &states_[head],
            &shape,
            registers_.data() + head * layout_.registers,
            scratch};
  }
  /// The same to look at.
  HeadView<KeyCodec, ValueCodec> view(Index head, const Shape& shape) const {
    // A view changes nothing; it is what `Head` builds on that holds pointers to change things by.
    auto& self = const_cast<HeadStore&>(*this);
    return {tables_.pages(head),
            tables_.columns(head),
            &layout_,
            &self.states_[head],
            &shape,
            self.registers_.data() + head * layout_.registers};
  }

  /// `count` heads from `first` on then hold what those of `from`, a store of the same form, hold
  /// from `source` on: heads of the same budgets, and others, if it is the same store. Throws
  /// std::bad_alloc; all is then as it was.
  void copy(Index first, const HeadStore& from, Index source, Index count) {
    try {
      for (Index h = 0; h < count; ++h) reserve(first + h, from.state(source + h).length);
    } catch (...) {
      for (Index h = 0; h < count; ++h) shrink(first + h);
      throw;
    }
    for (Index h = 0; h < count; ++h) {
      state(first + h) = from.state(source + h);
      for (Index p = 0; p < pages_for(state(first + h).length); ++p) {
        std::memcpy(page(first + h, p), from.page(source + h, p),
                    static_cast<std::size_t>(layout_.columns_at));
        for (Index c = 0; c < layout_.columns(); ++c) {
          std::memcpy(column(first + h, p, c), from.column(source + h, p, c),
                      static_cast<std::size_t>(layout_.column_bytes));
        }
      }
      shrink(first + h);
    }
    const Index registers = layout_.registers;
    std::copy_n(from.registers_.data() + source * registers, count * registers,
                registers_.data() + first * registers);
  }

  /// Everything but the workspace.
  MemoryUsage memory() const {
    MemoryUsage usage;
    Index held = 0;
    for (Index h = 0; h < heads(); ++h) {
      const Index n = states_[h].length;
      usage.keys += n * layout_.key_bytes;
      usage.values += n * layout_.value_bytes;
      usage.weights += layout_.has_weights ? 4 * n : 0;
      usage.positions += 4 * n;
      usage.statistics += 4 * n * layout_.statistics;
      held += tables_.size(h) * layout_.page_bytes;
    }
    usage.slack = held - usage.total();
    usage.bookkeeping = states_.bytes() + tables_.bytes() + registers_.bytes();
    if (own_pool_ != nullptr) {
      usage.slack += pool_->idle_pages() * layout_.page_bytes;
      usage.workspace += pool_->scratch_bytes();
      usage.bookkeeping += pool_->bookkeeping_bytes();
    }
    return usage;
  }

 private:
  /// There is room in the table.
  void add_page(Index head) {
    std::byte* const page = pool_->take();
    tables_.push_back(head, page, pool_->columns_of(page));
  }
  Index pages_for(Index entries) const {
    return (entries + layout_.page_size - 1) >> layout_.shift;
  }
  /// As many, or up to three more: a long head takes several at a time, which mostly lie side by
  /// side. Heads grow at the same time, and pages that they take in turns lie apart, which memory
  /// reads 10 to 17 % slower. None more than the budget has use for.
  Index pages_in_runs(Index head, Index entries) const {
    const Index pages = pages_for(entries), budget = states_[head].budget;
    const Index run = entries < kFarEntries || pages < 32 ? 1 : (pages < 64 ? 2 : 4);
    const Index most = budget > kMostTokens ? pages + run : pages_for(budget);
    return std::max(pages, std::min((pages + run - 1) / run * run, most));
  }

  PageLayout layout_;
  std::unique_ptr<PagePool> own_pool_;  // before the tables: they give their pages back to it
  PagePool* pool_;
  List<HeadState> states_;
  PageTables tables_;
  List<float> registers_;
};

/// For those who move what a cache holds elsewhere and back.
struct CacheAccess {
  template <class Cache>
  static auto& store(Cache& cache) {
    return cache.store_;
  }
  /// Scratch for heads of so many entries, which calls rely on. Throws std::bad_alloc.
  template <class Cache>
  static void reserve(Cache& cache, Index entries) {
    cache.runner_.workspaces().reserve({entries});
  }
};

}  // namespace tersekv::detail
