// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"

// Sorting lists of slots, or other numbers, on the host: marked for the device as SerialTeam is,
// which calls this.

namespace tersekv::detail {

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20013, 20014, 20015
#endif

/// Refers to what says whether slot a comes before slot b, whatever its type: so a program holds
/// the sorting once, rather than once for every part of a policy that sorts, and compiles it once.
class SlotLess {
 public:
  template <class Less>
  TERSEKV_HD explicit SlotLess(const Less& less)
      : less_(&less), call_([](const void* of, std::int32_t a, std::int32_t b) -> bool {
          return (*static_cast<const Less*>(of))(a, b);
        }) {}
  bool operator()(std::int32_t a, std::int32_t b) const { return call_(less_, a, b); }

 private:
  const void* less_;
  bool (*call_)(const void*, std::int32_t, std::int32_t);
};

TERSEKV_HD inline void sort_slots(std::int32_t* slots, Index n, SlotLess less) {
  std::sort(slots, slots + n, less);
}

/// The first `k` of `n` slots in their order, at the front of the list. O(n + k log k).
TERSEKV_HD inline void first_slots(std::int32_t* slots, Index k, Index n, SlotLess less) {
  if (k < n) std::nth_element(slots, slots + k, slots + n, less);
  sort_slots(slots, k, less);
}

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

}  // namespace tersekv::detail
