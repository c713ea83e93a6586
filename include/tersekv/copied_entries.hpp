// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tersekv/config.hpp"

namespace tersekv::detail {

/// Copies of a head's live entries, in order of position, with the policy's scores. Allocates.
template <class HeadView, class PolicyType>
std::vector<Entry> copied_entries(const HeadView& head, const PolicyType& policy) {
  std::vector<Entry> result(static_cast<std::size_t>(head.length()));
  for (Index i = 0; i < head.length(); ++i) {
    Entry& entry = result[static_cast<std::size_t>(i)];
    entry.position = head.position(i);
    entry.weight = head.weight(i);
    entry.score = policy.score(head, i);
    for (Index j = 0; j < head.head_dim(); ++j) {
      entry.key.push_back(head.key(i, j));
      entry.value.push_back(head.value(i, j));
    }
  }
  std::sort(result.begin(), result.end(),
            [](const Entry& a, const Entry& b) { return a.position < b.position; });
  return result;
}

}  // namespace tersekv::detail
