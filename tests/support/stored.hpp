// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tersekv/element.hpp"
#include "tersekv/int8.hpp"

namespace support {

/// Replaces every `dim` numbers of `rows`, a key or a value each, by what is stored of them.
template <class Codec>
void round_as_stored(std::vector<float>& rows, std::int64_t dim) {
  if constexpr (tersekv::Codec<Codec>::scaled) {
    for (auto row = rows.begin(); row != rows.end(); row += dim) {
      const float scale = tersekv::to_int8(
          &*row, dim, [&](std::int64_t j, tersekv::Int8 x) { row[j] = tersekv::to_float(x); });
      std::for_each(row, row + dim, [&](float& x) { x *= scale; });
    }
  } else {
    for (float& x : rows) x = tersekv::to_float(tersekv::from_float<Codec>(x));
  }
}

}  // namespace support
