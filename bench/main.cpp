// SPDX-License-Identifier: Apache-2.0
// tersekv-bench: all benchmarks, the machine's read bandwidth among them. Exit status 1 when a
// result was wrong or the filter matched nothing.
#include <fstream>

#include "subject.hpp"

namespace tersekv::bench {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// Bytes of the largest cache.
Index last_level_cache() {
  Index bytes = Index{32} << 20;
  for (const auto& cache : benchmark::CPUInfo::Get().caches) {
    bytes = std::max(bytes, static_cast<Index>(cache.size));
  }
  return bytes;
}

/// The innermost level that holds so much.
std::string level_of(Index bytes) {
  for (const auto& cache : benchmark::CPUInfo::Get().caches) {
    if (cache.type != "Instruction" && bytes <= cache.size) {
      return "L" + std::to_string(cache.level);
    }
  }
  return "memory";
}

/// Between start and stop: one thread adds up all bytes of a buffer, once.
void add_bandwidth(Index bytes) {
  add("read_bandwidth/bytes:" + std::to_string(bytes), [bytes](benchmark::State& state) {
    state.SetLabel(level_of(bytes));
    const ReadProbe probe(bytes);
    Samples samples;
    for (auto _ : state) {
      samples.add(probe.pass());
      state.SetIterationTime(samples.last());
    }
    state.counters["GB/s"] = probe.bytes() * 1e-9 / samples.median();
  });
}

}  // namespace
}  // namespace tersekv::bench

int main(int argc, char** argv) {
  using namespace tersekv;
  benchmark::AddCustomContext("processor", bench::processor());
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("flags", TERSEKV_BENCH_FLAGS);
  benchmark::AddCustomContext("float_lanes", std::to_string(simd::kLanes));
  const Index beyond = 2 * bench::last_level_cache();
  for (const Index kib : {32, 1024, 8192, 65536}) {
    if (kib << 10 != beyond) bench::add_bandwidth(kib << 10);
  }
  bench::add_bandwidth(beyond);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const bool ran = benchmark::RunSpecifiedBenchmarks() > 0;
  benchmark::Shutdown();
  return ran && !bench::any_wrong() ? 0 : 1;
}
