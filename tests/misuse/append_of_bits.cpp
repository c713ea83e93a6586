// SPDX-License-Identifier: Apache-2.0
// Halves kept as plain integers are not taken for numbers: view them as Half.
// expect: no matching function for call to | no matching member function for call to append
// expect: Element
#include <cstdint>
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Number = tersekv::Half;
#else
using Number = std::uint16_t;
#endif

void use(tersekv::KVCache<tersekv::Full>& cache, tersekv::TokenView<const Number> rows) {
  cache.append(0, rows, rows);
}
