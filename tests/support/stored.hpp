// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tersekv/element.hpp"

namespace support {

/// Replaces every `dim` numbers of `rows`, a key or a value each, by what is stored of them. (Bytes
/// by the definition, not by the library's own rounding.)
template <class Codec>
void round_as_stored(std::vector<float>& rows, std::int64_t dim) {
  if constexpr (tersekv::Codec<Codec>::scaled) {
    for (auto row = rows.begin(); row != rows.end(); row += dim) {
      float most = 0;
      std::for_each(row, row + dim, [&](float x) { most = std::max(most, std::fabs(x)); });
      if (most == 0) continue;
      const float scale = most / 127.0f;
      std::for_each(row, row + dim, [&](float& x) {
        x = static_cast<float>(std::lround(static_cast<double>(x) * 127 / most)) * scale;
      });
    }
  } else {
    for (float& x : rows) x = tersekv::to_float(tersekv::from_float<Codec>(x));
  }
}

}  // namespace support
