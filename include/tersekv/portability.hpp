// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

/// Marks a function that a CUDA team may call as well. Policy parts are written once; on a machine
/// without CUDA the mark is empty.
#if defined(__CUDACC__)
#define TERSEKV_HD __host__ __device__
#else
#define TERSEKV_HD
#endif

namespace tersekv::detail {

/// std::bit_cast that a CUDA team may call.
template <class To, class From>
TERSEKV_HD To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace tersekv::detail
