// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which cache the golden cases and the random traces are run on: the CPU's, or, in the programs
// that define TERSEKV_TEST_ON_DEVICE, the one of a device through the same interface.

#include <vector>

#if defined(TERSEKV_TEST_ON_DEVICE)
#include "cuda/mirrored_cache.hpp"
#else
#include "tersekv/kv_cache.hpp"
#endif

namespace support {

#if defined(TERSEKV_TEST_ON_DEVICE)
template <class Policy, class Codec = float>
using CacheUnderTest = on_device::MirroredCache<Policy, Codec>;
inline void require_device() { on_device::require_device(); }
/// Of the head_dims that a trace picks from; and one in so many traces is run, as kernels on the
/// host are slow, and so are the sanitizers.
inline const std::vector<tersekv::Index> kTraceDims{8, 16, 32};
inline constexpr int kOneTraceIn = 25;
inline constexpr tersekv::Index kTracePage = 64;
inline constexpr double kTraceSlack = 2;
#else
template <class Policy, class Codec = float>
using CacheUnderTest = tersekv::KVCache<Policy, Codec>;
inline void require_device() {}
inline const std::vector<tersekv::Index> kTraceDims{1, 3, 8, 20, 33};
inline constexpr tersekv::Index kTracePage = 16;
#if defined(__SANITIZE_ADDRESS__)
inline constexpr int kOneTraceIn = 4;
inline constexpr double kTraceSlack = 2;
#else
inline constexpr int kOneTraceIn = 1;
inline constexpr double kTraceSlack = 0;
#endif
#endif

}  // namespace support
