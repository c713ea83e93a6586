// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/policy.hpp"

namespace tersekv {

/// The later, the better. Observes nothing and stores nothing.
struct Age : ScorerBase {
  template <class Head, class Slot>
  TERSEKV_HD auto score(const Head& head, Slot slot) const {
    return detail::as_floats(head.position(slot));
  }
};

}  // namespace tersekv
