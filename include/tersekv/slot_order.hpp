// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Slot `x` goes into the heap of `n`, in which no slot comes after the one above it, at `i` or
/// below.
TERSEKV_HD inline void sift_down(std::int32_t* heap, Index i, Index n, std::int32_t x,
                                 SlotLess less) {
  for (Index child = 2 * i + 1; child < n; child = 2 * i + 1) {
    if (child + 1 < n && less(heap[child], heap[child + 1])) ++child;
    if (!less(x, heap[child])) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = x;
}

/// The first `k` of `n` slots in their order, at the front of the list; the rest in any. By a heap,
/// O(n log k): std::nth_element and std::sort took 4 % of an includer's time to compile.
TERSEKV_HD inline void first_slots(std::int32_t* slots, Index k, Index n, SlotLess less) {
  if (k == 0) return;
  for (Index i = k / 2; i-- > 0;) sift_down(slots, i, k, slots[i], less);
  for (Index i = k; i < n; ++i) {
    const std::int32_t x = slots[i];
    if (!less(x, slots[0])) continue;
    slots[i] = slots[0];
    sift_down(slots, 0, k, x, less);
  }
  for (Index i = k - 1; i > 0; --i) {
    const std::int32_t x = slots[i];
    slots[i] = slots[0];
    sift_down(slots, 0, i, x, less);
  }
}
TERSEKV_HD inline void sort_slots(std::int32_t* slots, Index n, SlotLess less) {
  first_slots(slots, n, n, less);
}

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

}  // namespace tersekv::detail
