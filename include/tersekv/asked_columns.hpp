// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/config.hpp"
#include "tersekv/policy_parts.hpp"
#include "tersekv/simd.hpp"

namespace tersekv::detail {

/// The columns of a page that a loop over a head's entries goes through.
struct Columns {
  bool weights = false, positions = false;
  Index first = 0, last = 0;  ///< statistics [first, last)
};

/// A head of which loops ask ahead for these columns, not for all that a page has: what is asked
/// for in vain comes all the same, and takes the place of what is not.
template <class Head>
class AskedColumns : public Head {
 public:
  AskedColumns(const Head& head, const Columns& columns) : Head(head), columns_(columns) {}

  void ask_for_columns(Index index) const {
    const PageSlot page = this->page_slot(index);
    const Index bytes = this->layout().column_bytes;
    if (columns_.weights && this->has_weights()) simd::ask<3>(this->weight_page(index), bytes);
    if (columns_.positions) simd::ask<3>(this->position_at(page), bytes);
    for (Index c = columns_.first; c < columns_.last; ++c) {
      simd::ask<3>(this->statistic_at(c, page), bytes);
    }
  }

 private:
  Columns columns_;
};

/// A head whose columns a loop has just gone through, or asked for, so that they are in the nearer
/// caches: loops ask for none. Of long heads all that is sure is that they were lately.
template <class Head>
class NearColumns : public Head {
 public:
  explicit NearColumns(const Head& head) : Head(head) {}
  void ask_for_columns(Index) const {}
};

/// `head`, for a loop of `Team` that comes right after another, if `near`. Less to compile than one
/// that asks for no columns by a list of them.
template <class Team, bool near = true, class Head>
TERSEKV_HD decltype(auto) near_if(const Head& head) {
  if constexpr (HasVectors<Team> && near) {
    return NearColumns<Head>(head);
  } else {
    return (head);
  }
}

/// `head`, for a loop of `Team` that goes through `columns` alone. Worth it where there are several
/// others; a loop that leaves out one or two takes as long.
template <class Team, class Head>
TERSEKV_HD decltype(auto) asking_for(const Head& head, [[maybe_unused]] const Columns& columns) {
  if constexpr (HasVectors<Team>) {
    return AskedColumns<Head>(head, columns);
  } else {
    return (head);
  }
}

}  // namespace tersekv::detail
