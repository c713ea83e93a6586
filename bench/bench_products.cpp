// SPDX-License-Identifier: Apache-2.0
// Products: between start and stop, elements in the nearest cache become floats, are multiplied by
// a number for each of several query rows, and added up, as attention does with keys and values:
// what is left of it where nothing else takes time. The thread's CPU time.
#include <cmath>
#include <vector>

#include "multiply_add.hpp"
#include "subject.hpp"

namespace tersekv::bench {
namespace {

constexpr Index kBytes = 16384;

/// sums[r] = rows[r] * (the sum of all elements), for Rows rows.
template <int Rows, class T>
[[gnu::noinline]] void products(const T* elements, Index count, const float* rows, float* sums) {
  constexpr int all = tersekv::detail::kSumBlock / Rows, kVectors = all >= 8 ? 8 : all >= 4 ? 4 : 2;
  simd::Floats total[std::size_t{Rows}][std::size_t{kVectors}] = {}, row[std::size_t{Rows}];
  for (int r = 0; r < Rows; ++r) row[r] = simd::broadcast(rows[r]);
  for (Index i = 0; i < count; i += kVectors * simd::kLanes) {
    simd::Floats some[std::size_t{kVectors}];
    simd::load_spread<kVectors>(elements + i, some);
    TERSEKV_HOST_UNROLL for (int r = 0; r < Rows; ++r) {
      TERSEKV_HOST_UNROLL for (int v = 0; v < kVectors; ++v) total[r][v] += row[r] * some[v];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    sums[r] = 0;
    for (int v = 0; v < kVectors; ++v) sums[r] += simd::sum(total[r][v]);
  }
}

/// Seconds of f(), which takes some microseconds, by many calls in a row.
template <class F>
double seconds_each(Index calls, F&& f) {
  return seconds_of(
             [&] {
               for (Index i = 0; i < calls; ++i) f();
             },
             cpu) /
         static_cast<double>(calls);
}

template <int Rows, class T>
void run(benchmark::State& state) {
  constexpr Index count = kBytes / Index{sizeof(T)}, calls = 1000;
  alignas(64) static T elements[static_cast<std::size_t>(count)];
  double sum = 0;
  for (Index i = 0; i < count; ++i) {
    elements[i] = from_float<T>(static_cast<float>(i % 7 - 2) * 0.5f);
    sum += to_float(elements[i]);
  }
  const float rows[] = {1, -0.5f, 2, 3};
  float sums[4] = {};
  const auto once = [&] {
    products<Rows>(elements, count, rows, sums);
    asm volatile("" : : "r"(sums) : "memory");
  };
  once();
  for (int r = 0; r < Rows; ++r) {
    const bool right = std::abs(sums[r] - rows[r] * sum) < 1e-3 * std::abs(sum);
    if (!right) return refuse(state, "a sum of products is wrong");
  }
  Samples samples, in_registers;
  for (auto _ : state) {
    samples.add(seconds_each(calls, once));
    state.SetIterationTime(samples.last() * static_cast<double>(calls));
    double operations = 0;
    const double seconds = seconds_of([&] { operations = multiply_add_in_registers(1); }, cpu);
    in_registers.add(seconds / operations);
  }
  const double operations = 2.0 * Rows * static_cast<double>(count), each = samples.median();
  state.counters["GFLOP/s"] = operations / each * 1e-9;
  state.counters["peak_GFLOP/s"] = 1e-9 / in_registers.median();
  state.counters["over_peak"] = each / (operations * in_registers.median());
  state.counters["GB/s"] = static_cast<double>(kBytes) / each * 1e-9;
}

template <class T>
void add_rows() {
  const std::string name = std::string("products/") + Codec<T>::name + "/rows:";
  add(name + "1", run<1, T>);
  add(name + "3", run<3, T>);
  add(name + "4", run<4, T>);
}

const bool added = [] {
  for_each_element([]<class T>() { add_rows<T>(); });
  return true;
}();

}  // namespace
}  // namespace tersekv::bench
