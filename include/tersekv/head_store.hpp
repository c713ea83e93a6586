// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <vector>

#include "tersekv/config.hpp"
#include "tersekv/head.hpp"
#include "tersekv/page_pool.hpp"

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
        states_(static_cast<std::size_t>(heads), pool_->resource()),
        tables_(static_cast<std::size_t>(heads), pool_->resource()),
        column_tables_(static_cast<std::size_t>(heads), pool_->resource()),
        registers_(static_cast<std::size_t>(heads * layout.registers), pool_->resource()) {
    pool_->set_page_bytes(layout.page_bytes, layout.columns(), layout.column_bytes);
    layout_ = layout.in_blocks_of(pool_->block_pages());
  }
  HeadStore(HeadStore&&) = default;
  HeadStore& operator=(HeadStore&&) = delete;
  ~HeadStore() {
    for (Index h = 0; h < heads(); ++h) {
      states_[at(h)].length = 0;
      shrink(h);
    }
  }

  Index heads() const { return static_cast<Index>(states_.size()); }
  const PageLayout& layout() const { return layout_; }
  PagePool& pool() const { return *pool_; }
  HeadState& state(Index head) { return states_[at(head)]; }
  const HeadState& state(Index head) const { return states_[at(head)]; }

  /// Entries of the longest of `count` heads from `first` on.
  Index longest(Index first, Index count) const {
    Index most = 0;
    for (Index h = first; h < first + count; ++h) most = std::max(most, states_[at(h)].length);
    return most;
  }

  Counts total_counts() const { return detail::total_counts(states_); }
  double keep_ratio() const { return detail::keep_ratio(states_); }

  /// Pages for `entries` entries, and those that complete a run. Throws std::bad_alloc; `shrink`
  /// then takes back what was added.
  void reserve(Index head, Index entries) {
    auto& table = tables_[at(head)];
    const auto pages = static_cast<std::size_t>(pages_for(entries));
    if (table.size() >= pages) return;
    const auto run = static_cast<std::size_t>(pages_in_runs(head, entries));
    if (table.capacity() < run) table.reserve(std::max(run, 2 * table.capacity()));
    column_tables_[at(head)].reserve(table.capacity());
    while (table.size() < pages) add_page(head);
    try {
      while (table.size() < run) add_page(head);
    } catch (const std::bad_alloc&) {  // what is needed is there
    }
  }

  /// Pages that hold no live entry, nor complete a run, back to the pool.
  void shrink(Index head) noexcept {
    auto& table = tables_[at(head)];
    const auto pages = static_cast<std::size_t>(pages_in_runs(head, states_[at(head)].length));
    while (table.size() > pages) {
      pool_->give(table.back());
      table.pop_back();
      column_tables_[at(head)].pop_back();
    }
  }

  /// Takes the latest tokens back, which hold the last slots.
  void rewind(Index head, Index tokens) noexcept {
    states_[at(head)].length -= tokens;
    states_[at(head)].note_rewind(tokens);
    shrink(head);
  }

  /// As if nothing had ever been appended; the budget stays.
  void clear(Index head) noexcept {
    const Index budget = states_[at(head)].budget;
    states_[at(head)] = HeadState{};
    states_[at(head)].budget = budget;
    std::fill_n(registers_.data() + head * layout_.registers, layout_.registers, 0.0f);
    shrink(head);
  }

  /// Page `index` of the head, its column `column`, and its registers, for copies to and from
  /// elsewhere.
  std::byte* page(Index head, Index index) const { return tables_[at(head)][at(index)]; }
  std::byte* column(Index head, Index index, Index column) const {
    return column_tables_[at(head)][at(index)] + column * layout_.column_stride;
  }
  float* registers(Index head) { return registers_.data() + head * layout_.registers; }

  PageTable pages(Index head) const { return tables_[at(head)]; }
  /// A reference to the head for the policy to work on.
  Head<KeyCodec, ValueCodec> head(Index head, const Shape& shape, const Scratch& scratch) {
    return {tables_[at(head)].data(),
            column_tables_[at(head)].data(),
            &layout_,
            &states_[at(head)],
            &shape,
            registers_.data() + head * layout_.registers,
            scratch};
  }
  /// The same to look at.
  HeadView<KeyCodec, ValueCodec> view(Index head, const Shape& shape) const {
    // A view changes nothing; it is what `Head` builds on that holds pointers to change things by.
    auto& self = const_cast<HeadStore&>(*this);
    return {tables_[at(head)].data(),
            column_tables_[at(head)].data(),
            &layout_,
            &self.states_[at(head)],
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
        std::memcpy(page(first + h, p), from.page(source + h, p), at(layout_.columns_at));
        for (Index c = 0; c < layout_.columns(); ++c) {
          std::memcpy(column(first + h, p, c), from.column(source + h, p, c),
                      at(layout_.column_bytes));
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
      const Index n = states_[at(h)].length;
      usage.keys += n * layout_.key_bytes;
      usage.values += n * layout_.value_bytes;
      usage.weights += layout_.has_weights ? 4 * n : 0;
      usage.positions += 4 * n;
      usage.statistics += 4 * n * layout_.statistics;
      held += static_cast<Index>(tables_[at(h)].size()) * layout_.page_bytes;
      usage.bookkeeping += bytes_of(tables_[at(h)]) + bytes_of(column_tables_[at(h)]);
    }
    usage.slack = held - usage.total() + usage.bookkeeping;
    usage.bookkeeping += bytes_of(states_) + 2 * bytes_of(tables_) + bytes_of(registers_);
    if (own_pool_ != nullptr) {
      usage.slack += pool_->idle_pages() * layout_.page_bytes;
      usage.workspace += pool_->scratch_bytes();
      usage.bookkeeping += pool_->bookkeeping_bytes();
    }
    return usage;
  }

 private:
  static std::size_t at(Index head) { return static_cast<std::size_t>(head); }
  /// There is room in both tables.
  void add_page(Index head) {
    tables_[at(head)].push_back(pool_->take());
    column_tables_[at(head)].push_back(pool_->columns_of(tables_[at(head)].back()));
  }
  Index pages_for(Index entries) const {
    return (entries + layout_.page_size - 1) >> layout_.shift;
  }
  /// As many, or up to three more: a long head takes several at a time, which mostly lie side by
  /// side. Heads grow at the same time, and pages that they take in turns lie apart, which memory
  /// reads 10 to 17 % slower. None more than the budget has use for.
  Index pages_in_runs(Index head, Index entries) const {
    const Index pages = pages_for(entries), budget = states_[at(head)].budget;
    const Index run = entries < kFarEntries || pages < 32 ? 1 : (pages < 64 ? 2 : 4);
    const Index most = budget > kMostTokens ? pages + run : pages_for(budget);
    return std::max(pages, std::min((pages + run - 1) / run * run, most));
  }
  template <class Vector>
  static Index bytes_of(const Vector& v) {
    return static_cast<Index>(v.capacity() * sizeof(typename Vector::value_type));
  }

  PageLayout layout_;
  std::unique_ptr<PagePool> own_pool_;  // before the tables: they give their pages back to it
  PagePool* pool_;
  std::pmr::vector<HeadState> states_;
  std::pmr::vector<std::pmr::vector<std::byte*>> tables_, column_tables_;
  std::pmr::vector<float> registers_;
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
