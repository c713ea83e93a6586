// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C library's functions that the headers use, by the compilers' own names for them: <cmath>,
// with all that the standard has added to it, would be a thirtieth of the time that a program takes
// to compile. CUDA's compiler has read it anyway, and knows a device's functions by its names.

#if defined(__CUDACC__)
#include <cmath>
#endif

namespace tersekv::detail {

#if defined(__CUDACC__)
using std::erf;
using std::exp;
using std::log;
using std::log1p;
using std::sqrt;
#else
inline float erf(float x) { return __builtin_erff(x); }
inline float exp(float x) { return __builtin_expf(x); }
inline float log(float x) { return __builtin_logf(x); }
inline double log(double x) { return __builtin_log(x); }
inline float log1p(float x) { return __builtin_log1pf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
#endif

}  // namespace tersekv::detail
