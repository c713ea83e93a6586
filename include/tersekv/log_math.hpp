// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tersekv/config.hpp"
#include "tersekv/portability.hpp"

// Exponentials and logarithms of floats, or of vectors of floats, without branches or calls, on
// every backend. Arguments are finite.

namespace tersekv::detail {

/// What arithmetic needs to know of a float, or of a vector of floats (`tersekv/simd_math.hpp`).
template <class Float>
struct LaneTraits;
template <>
struct LaneTraits<float> {
  using Int = std::int32_t;
  TERSEKV_HD static Int truncate(float x) { return static_cast<Int>(x); }
  TERSEKV_HD static float to_float(Int x) { return static_cast<float>(x); }
  TERSEKV_HD static float higher(float a, float b) { return choose(a > b, a, b); }
  TERSEKV_HD static float keep_order(float x) { return detail::keep_order(x); }
  TERSEKV_HD static void begin() { one_by_one(); }
};
template <class Float>
using IntOf = typename LaneTraits<Float>::Int;

/// The higher of two.
template <class Float>
TERSEKV_HD inline Float higher(Float a, Float b) {
  return LaneTraits<Float>::higher(a, b);
}
/// The lower of two.
template <class Float>
TERSEKV_HD inline Float lower(Float a, Float b) {
  return choose(a < b, a, b);
}
/// |x|.
template <class Float>
TERSEKV_HD inline Float magnitude(Float x) {
  return bit_copy<Float>(bit_copy<IntOf<Float>>(x) & 0x7fffffff);
}

/// Whole numbers as floats, of numbers and of vectors.
TERSEKV_HD inline float as_floats(Index x) { return static_cast<float>(x); }

/// (e^r - 1) / r for |r| <= ln(2)/2: Taylor's polynomial; the next term is below 2e-8.
template <class Float>
TERSEKV_HD inline Float slope_of_small(Float r) {
  Float p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p * r + 1.0f;
}

/// x in [-87, 0] as n ln 2 + r, with |r| <= ln(2)/2.
template <class Float>
struct Power {
  IntOf<Float> n;
  Float r;
  TERSEKV_HD static Power of(Float x) {
    const IntOf<Float> n = LaneTraits<Float>::truncate(x * 1.44269504088896341f - 0.5f);
    // One constant: what two would gain is lost where g++ vectorises, as it forgets keep_order
    // there.
    return {n, x - LaneTraits<Float>::to_float(n) * 0.693147181f};
  }
  TERSEKV_HD Float power() const { return bit_copy<Float>((n + 127) << 23); }  ///< 2^n
};

/// e^x for x in [-87, 0], relative error below 3e-7 + 6e-8 |x|: what is far below is small anyway.
template <class Float>
TERSEKV_HD inline Float exp_in_range(Float x) {
  LaneTraits<Float>::begin();
  const auto split = Power<Float>::of(x);
  return (slope_of_small(split.r) * split.r + 1.0f) * split.power();
}

/// e^-|x|, relative error below 3e-7 + 6e-8 |x|, and no less than e^-87 (1.6e-38). The sign does
/// not count, as differences of huge numbers that are not positive by definition may come out so
/// when reassociated.
template <class Float>
TERSEKV_HD inline Float exp_of_negative(Float x) {
  const Float least = Float{} - 87.0f;
  constexpr auto sign = static_cast<std::int32_t>(0x80000000u);
  const Float below = bit_copy<Float>(bit_copy<IntOf<Float>>(x) | sign);
  return exp_in_range(higher(below, least));
}

/// ln x for a normal x > 0, error below 2e-7 |ln x| + 1e-7; of other bits, some number.
template <class Float>
TERSEKV_HD inline Float log_of(Float x) {
  LaneTraits<Float>::begin();
  // x = 2^n (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)), and ln(1 + z) = z - z^2/2 + z^3 P(z), P
  // fitted to a relative error of 6e-9. No division: -ffast-math replaces one by an estimate in
  // vectors only, and what is in a vector depends on where the numbers lie.
  const auto bits = bit_copy<IntOf<Float>>(x) & 0x7fffffff;  // of any bits, nothing overflows
  const IntOf<Float> n = (bits - 0x3f3504f3) >> 23;
  const Float z = bit_copy<Float>(bits - (n << 23)) - 1.0f;
  Float p = z * -0.076343894f + 0.12761538f;
  p = p * z - 0.13160203f;
  p = p * z + 0.14201765f;
  p = p * z - 0.16623355f;
  p = p * z + 0.20001227f;
  p = p * z - 0.25000823f;
  p = p * z + 0.33333331f;
  // One product to an addition: of two, scalar and vector code might fuse either with it.
  const Float most = z * z * (p * z - 0.5f) + z;
  return LaneTraits<Float>::to_float(n) * 0.693147181f + most;
}

/// No more than ln x for a normal x > 0, by 0.0597 at most and the rounding: a chord of the
/// logarithm between powers of two. No product beside a sum, and quick.
template <class Float>
TERSEKV_HD inline Float log_at_most(Float x) {
  constexpr float ln2 = 0.693147181f;
  const auto bits = bit_copy<IntOf<Float>>(x) & 0x7fffffff;  // of any bits, nothing overflows
  return LaneTraits<Float>::to_float(bits - (127 << 23)) * (ln2 / (1 << 23));
}

/// 1 - e^x for x in [-87, 0], relative error below 4e-7.
template <class Float>
TERSEKV_HD inline Float one_minus_exp(Float x) {
  LaneTraits<Float>::begin();
  // Where e^x is near 1 the power is 1, and nothing cancels.
  const auto split = Power<Float>::of(x);
  const Float less = slope_of_small(split.r) * split.r;  // e^r - 1
  return LaneTraits<Float>::keep_order(1.0f - split.power()) - split.power() * less;
}

/// ln(1 + x) for x in [0, 1], error below 2e-7: a polynomial fitted to a relative error of 3e-8.
template <class Float>
TERSEKV_HD inline Float log_one_plus(Float x) {
  LaneTraits<Float>::begin();
  Float p = x * 0.0052326913f - 0.029505227f;
  p = p * x + 0.078225933f;
  p = p * x - 0.136632442f;
  p = p * x + 0.191060066f;
  p = p * x - 0.24842982f;
  p = p * x + 0.333190978f;
  p = p * x - 0.499994934f;
  return (p * x + 0.99999994f) * x;
}

/// ln(e^a + e^b) without overflow; absolute error below 4e-7 beside the rounding of the result.
template <class Float>
TERSEKV_HD inline Float log_add(Float a, Float b) {
  const Float high = higher(a, b);
  return high + LaneTraits<Float>::keep_order(log_one_plus(exp_of_negative(a - b)));
}

/// share ln(share / prior), 0 for a share of 0: one term of a Kullback-Leibler divergence. Once per
/// merge, so it may branch.
TERSEKV_HD inline float relative_entropy(float share, float prior) {
  return share > 1e-37f ? share * log_of(share / prior) : 0.0f;
}

/// ln(1 - decay^queries): what an exponential average over `queries` values lacks. 0 for none, and
/// where decay^queries is below e^-20, as 1 less that is 1 to a float.
template <class Float = float>
TERSEKV_HD inline Float log_missing(float log_decay, IntOf<Float> queries) {
  const Float none = {}, one = none + 1.0f, given = LaneTraits<Float>::to_float(queries);
  const Float spent = higher(higher(given, one) * log_decay, none - 20.0f);
  return choose(given > none, log_of(one_minus_exp(spent)), none);
}

}  // namespace tersekv::detail
