// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace support {

/// Where it looks on, meetings of threads take a hundred times as long, and a test of many does
/// with fewer: a race is in every one.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Where it looks on, a test of random cases does with fewer.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace support
