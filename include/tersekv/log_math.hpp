// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/portability.hpp"

// Exponentials and logarithms of floats without branches or calls, so that a loop over a head's
// entries vectorises (but see `one_by_one`), on every backend. Arguments are finite.

namespace tersekv::detail {

/// (e^r - 1) / r for |r| <= ln(2)/2: Taylor's polynomial; the next term is below 2e-8.
TERSEKV_HD inline float slope_of_small(float r) {
  float p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p * r + 1.0f;
}

/// x in [-87, 0] as n ln 2 + r, with |r| <= ln(2)/2.
struct Power {
  std::int32_t n;
  float r;
  TERSEKV_HD float power() const { return bit_copy<float>((n + 127) << 23); }  ///< 2^n
};
TERSEKV_HD inline Power in_powers(float x) {
  const auto n = static_cast<std::int32_t>(x * 1.44269504088896341f - 0.5f);  // truncated to zero
  // One constant: what two would gain is lost where g++ vectorises, as it forgets keep_order there.
  return {n, x - static_cast<float>(n) * 0.693147181f};
}

/// e^x for x in [-87, 0], relative error below 3e-7 + 6e-8 |x|: what is far below is small anyway.
TERSEKV_HD inline float exp_in_range(float x) {
  one_by_one();
  const Power split = in_powers(x);
  return (slope_of_small(split.r) * split.r + 1.0f) * split.power();
}

/// e^-|x|, relative error below 3e-7 + 6e-8 |x|, and no less than e^-87 (1.6e-38). The sign does
/// not count, as differences of huge numbers that are not positive by definition may come out so
/// when reassociated.
TERSEKV_HD inline float exp_of_negative(float x) {
  // As integers, negative floats grow with their magnitude.
  constexpr std::uint32_t sign = 0x80000000u, least = 0xc2ae0000u;  // -87
  const std::uint32_t bits = bit_copy<std::uint32_t>(x) | sign;
  return exp_in_range(bit_copy<float>(bits < least ? bits : least));
}

/// ln x as n ln 2 + rest, of a normal x > 0 with these bits: a float's, or a vector's of floats.
template <class Float, class Int>
struct SplitLog {
  Int n;
  Float rest;
  TERSEKV_HD static SplitLog of(Int bits) {
    // x = 2^n (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)), and ln(1 + z) = z - z^2/2 + z^3 P(z), P
    // fitted to a relative error of 6e-9. No division: -ffast-math replaces one by an estimate in
    // vectors only, and what is in a vector depends on where the numbers lie.
    const Int n = (bits - 0x3f3504f3) >> 23;
    const Float z = bit_copy<Float>(bits - (n << 23)) - 1.0f;
    Float p = z * -0.076343894f + 0.12761538f;
    p = p * z - 0.13160203f;
    p = p * z + 0.14201765f;
    p = p * z - 0.16623355f;
    p = p * z + 0.20001227f;
    p = p * z - 0.25000823f;
    p = p * z + 0.33333331f;
    // One product to an addition: of two, scalar and vector code might fuse either with it.
    return {n, z * z * (p * z - 0.5f) + z};
  }
};

/// ln x for a normal x > 0, error below 2e-7 |ln x| + 1e-7.
TERSEKV_HD inline float log_of(float x) {
  one_by_one();
  const auto split = SplitLog<float, std::int32_t>::of(bit_copy<std::int32_t>(x));
  return static_cast<float>(split.n) * 0.693147181f + split.rest;
}

/// No more than ln x for a normal x > 0, by 0.06 at most and the rounding: a chord of the logarithm
/// between powers of two. No product beside a sum, and quick.
TERSEKV_HD inline float log_at_most(float x) {
  constexpr float ln2 = 0.693147181f;
  return static_cast<float>(bit_copy<std::int32_t>(x) - (127 << 23)) * (ln2 / (1 << 23));
}

/// 1 - e^x for x in [-87, 0], relative error below 4e-7.
TERSEKV_HD inline float one_minus_exp(float x) {
  one_by_one();
  // Where e^x is near 1 the power is 1, and nothing cancels.
  const Power split = in_powers(x);
  const float less = slope_of_small(split.r) * split.r;  // e^r - 1
  return keep_order(1.0f - split.power()) - split.power() * less;
}

/// ln(1 + x) for x in [0, 1], error below 2e-7: a polynomial fitted to a relative error of 3e-8.
TERSEKV_HD inline float log_one_plus(float x) {
  one_by_one();
  float p = x * 0.0052326913f - 0.029505227f;
  p = p * x + 0.078225933f;
  p = p * x - 0.136632442f;
  p = p * x + 0.191060066f;
  p = p * x - 0.24842982f;
  p = p * x + 0.333190978f;
  p = p * x - 0.499994934f;
  return (p * x + 0.99999994f) * x;
}

/// ln(e^a + e^b) without overflow; absolute error below 4e-7 beside the rounding of the result.
TERSEKV_HD inline float log_add(float a, float b) {
  const float high = a > b ? a : b;
  return high + keep_order(log_one_plus(exp_of_negative(a - b)));
}

/// share ln(share / prior), 0 for a share of 0: one term of a Kullback-Leibler divergence. Once per
/// merge, so it may branch.
TERSEKV_HD inline float relative_entropy(float share, float prior) {
  return share > 1e-37f ? share * log_of(share / prior) : 0.0f;
}

/// Queries after which decay^queries is below e^-20, and 1 - decay^queries is 1 to a float.
TERSEKV_HD inline std::int32_t queries_until_full(float log_decay) {
  return static_cast<std::int32_t>(-20.0f / log_decay) + 1;
}

/// ln(1 - decay^queries): what an exponential average over `queries` values lacks. 0 for none.
/// `full`: queries_until_full(log_decay), for loops to work out once.
TERSEKV_HD inline float log_missing(float log_decay, std::int32_t queries, std::int32_t full) {
  const std::int32_t some = queries > 1 ? queries : 1, counted = some < full ? some : full;
  const float lacking = log_of(one_minus_exp(static_cast<float>(counted) * log_decay));
  return choose(queries > 0, lacking, 0.0f);
}

}  // namespace tersekv::detail
