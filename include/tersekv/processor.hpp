// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which processor a program is compiled for, as far as it decides how memory is best asked for.

namespace tersekv::simd {

/// The generation of AMD's processors: 5 from Zen 5 on, 4 for all before it, 0 for others'.
/// Compilers that do not know Zen 5 take it for an older one, but with AVX-VNNI.
#if !(defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || \
      defined(__znver5__))
inline constexpr int kZen = 0;
#elif defined(__AVXVNNI__)
inline constexpr int kZen = 5;
#else
inline constexpr int kZen = 4;
#endif

/// Whether it is one of Intel's first generation with AVX-512, Skylake to Cooper Lake, whose first
/// level is 32 KiB. Compilers that are told of AVX-512 and no more take later ones for such.
#if defined(__AVX512F__) && !defined(__AVX512VBMI2__)
inline constexpr bool kSkylake = kZen == 0;
#else
inline constexpr bool kSkylake = false;
#endif

/// Whether what is in memory is best asked for into the second-level cache, and a page ahead, if it
/// is asked for at all: Intel's processors and AMD's up to Zen 4 have more places for what that one
/// waits for than for the first level's. Zen 5 is better asked into the first, and later.
#if defined(__x86_64__)
inline constexpr bool kAsksFar = kZen != 5;
#else
inline constexpr bool kAsksFar = false;
#endif
/// Whether attention of several query rows asks for it in lines apart instead: on those of Intel's
/// where that was timed. On a Zen 4 it does so for bytes alone (detail::ask_of).
#if defined(__AVX512F__)
inline constexpr bool kAsksApart = kZen == 0;
#else
inline constexpr bool kAsksApart = false;
#endif

}  // namespace tersekv::simd
