// SPDX-License-Identifier: Apache-2.0
// Decode steps of a model of Llama-3-8B's shape on a CUDA device, with the full cache and with
// every policy: what a step takes, what the caches hold, what batch would fit. --help says what is
// left out. Exit status: 0, 1 where something failed, 2 for a command line that cannot be run, 77
// without a device.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder.cuh"
#include "measure.cuh"
#include "options.hpp"

namespace decode {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

/// As many scores of [0, 1) are below the threshold as makes the budget.
tersekv::KVzap kvzap(const Options& options) {
  tersekv::KVzapOptions kvzap;
  kvzap.window = std::min<Index>(128, options.budget() / 2);
  const auto others = static_cast<double>(std::max<Index>(options.context - kvzap.window, 1));
  kvzap.threshold =
      static_cast<float>(1 - static_cast<double>(options.budget() - kvzap.window) / others);
  return tersekv::make_kvzap(kvzap);
}

/// measure() with the policy of that name and its defaults.
Result measure_by_name(const std::string& name, const Options& options, Decoder& decoder) {
  const auto with = [&](const auto& policy) { return measure(name, policy, options, decoder); };
  if (name == "full") return with(tersekv::Full{});
  if (name == "streaming_llm") return with(tersekv::make_streaming_llm());
  if (name == "h2o") return with(tersekv::make_h2o());
  if (name == "tova") return with(tersekv::make_tova());
  if (name == "snapkv") return with(tersekv::make_snapkv());
  if (name == "zsmerge") return with(tersekv::make_zsmerge());
  if (name == "weightedkv") return with(tersekv::make_weightedkv());
  if (name == "morphkv") return with(tersekv::make_morphkv());
  if (name == "keepkv") return with(tersekv::make_keepkv());
  if (name == "kvzap") return with(kvzap(options));
  throw std::invalid_argument("no policy '" + name + "'");
}

void print(const std::string& name, const Options& options, const Result& r) {
  std::printf("%-14s %9lld %10.1f %10.1f %9.3f %9.3f %9.3f %10.1f %8.0f\n", name.c_str(),
              static_cast<long long>(r.entries), static_cast<double>(r.cache_bytes) / kMiB,
              static_cast<double>(r.work_bytes) / kMiB, r.step_ms, r.apart_ms, r.cache_ms,
              1000 * static_cast<double>(options.batch) / std::min(r.step_ms, r.apart_ms), r.fits);
  std::fflush(stdout);
}

void run(const Options& options, cudaStream_t stream) {
  std::fprintf(stderr, "making random weights\n");
  Decoder decoder(options.layers, options.batch, stream);
  std::printf("%-14s %9s %10s %10s %9s %9s %9s %10s %8s\n", "policy", "entries", "cache MiB",
              "work MiB", "step ms", "apart ms", "caches ms", "tokens/s", "fits");
  for (const std::string& name : kPolicyNames) {
    if (options.policy != "all" && options.policy != name) continue;
    try {
      print(name, options, measure_by_name(name, options, decoder));
    } catch (const tersekv::cuda::OutOfMemory&) {
      std::printf("%-14s does not fit into the device's memory\n", name.c_str());
    }
  }
  std::printf(
      "\nEntries: per KV head, after the steps. Cache: the pool with all its pages, and the "
      "tables. "
      "Work: scratch\nof kernels, twice for all layers. Apart: policies have a stream of their "
      "own; "
      "tokens/s: of the faster.\nFits: sequences, computed from bytes per sequence, not run.\n");
}

/// The device's name; empty where there is none, and then `reason` says why.
std::string device_name(std::string& reason) {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess || devices == 0) {
    reason = code == cudaSuccess ? "none found" : cudaGetErrorString(code);
    return {};
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "device properties");
  return properties.name;
}

int start(const std::vector<std::string>& arguments) {
  Options options;
  try {
    options = parse_options(arguments);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "cuda_decode: %s (see: --help)\n", error.what());
    return 2;
  }
  if (options.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  std::string reason;
  const std::string device = device_name(reason);
  if (device.empty()) {
    std::fprintf(stderr, "cuda_decode: there is no CUDA device (%s)\n", reason.c_str());
    return 77;
  }
  std::printf(
      "%s: %lld layers, batch %lld, context %lld, budget %lld (%g %%), bfloat16, mean of "
      "%lld steps\n\n",
      device.c_str(), static_cast<long long>(options.layers), static_cast<long long>(options.batch),
      static_cast<long long>(options.context), static_cast<long long>(options.budget()),
      options.keep, static_cast<long long>(options.steps));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "stream");
  try {
    run(options, stream);
  } catch (const tersekv::cuda::OutOfMemory&) {
    std::fprintf(stderr,
                 "cuda_decode: the weights do not fit into the device's memory: try --layers\n");
    return 1;
  }
  check(cudaStreamDestroy(stream), "stream");
  return 0;
}

}  // namespace
}  // namespace decode

int main(int argc, char** argv) {
  try {
    return decode::start({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_decode: %s\n", error.what());
    return 1;
  }
}
