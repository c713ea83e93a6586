// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>

#include "tersekv/config.hpp"
#include "tersekv/list.hpp"

namespace tersekv::detail {

/// Where the pages of a cache's heads lie, and the first columns of each.
class PageTables {
 public:
  PageTables(std::pmr::memory_resource* resource, Index heads) : tables_(resource, heads) {}
  PageTables(PageTables&&) = default;
  PageTables& operator=(PageTables&&) = delete;
  ~PageTables() {
    for (const Table& table : tables_) free(table);
  }

  Index size(Index head) const { return tables_[head].size; }
  std::byte** pages(Index head) const { return tables_[head].pages; }
  std::byte** columns(Index head) const { return tables_[head].columns(); }

  /// Room for so many pages of a head at least. Throws std::bad_alloc, and is then as before.
  void reserve(Index head, Index pages) {
    Table& table = tables_[head];
    if (pages <= table.capacity) return;
    Table grown{.size = table.size, .capacity = std::max(pages, 2 * table.capacity)};
    grown.pages = static_cast<std::byte**>(
        tables_.resource()->allocate(static_cast<std::size_t>(grown.bytes()), alignof(std::byte*)));
    std::copy_n(table.pages, table.size, grown.pages);
    std::copy_n(table.columns(), table.size, grown.columns());
    free(table);
    table = grown;
  }
  /// There is room.
  void push_back(Index head, std::byte* page, std::byte* columns) {
    Table& table = tables_[head];
    table.pages[table.size] = page;
    table.columns()[table.size] = columns;
    ++table.size;
  }
  /// Returns the page.
  std::byte* pop_back(Index head) { return tables_[head].pages[--tables_[head].size]; }

  Index bytes() const {
    Index sum = tables_.bytes();
    for (const Table& table : tables_) sum += table.bytes();
    return sum;
  }

 private:
  struct Table {
    std::byte** pages = nullptr;
    Index size = 0, capacity = 0;
    std::byte** columns() const { return pages + capacity; }
    Index bytes() const { return 2 * capacity * static_cast<Index>(sizeof(std::byte*)); }
  };
  void free(const Table& table) {
    if (table.capacity == 0) return;
    tables_.resource()->deallocate(table.pages, static_cast<std::size_t>(table.bytes()),
                                   alignof(std::byte*));
  }

  List<Table> tables_;
};

}  // namespace tersekv::detail
