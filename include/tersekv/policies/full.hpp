// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/age.hpp"
#include "tersekv/selectors/keep_all.hpp"

namespace tersekv {

/// Keeps every entry: the plain KV cache, and what all others are compared with. Ignores budgets.
using Full = Policy<Age, KeepAll, Drop>;

}  // namespace tersekv
