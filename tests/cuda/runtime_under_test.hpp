// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests in this folder run on: the host, or, where nvcc compiles them, a CUDA device.

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdlib>
#include <type_traits>
#include <vector>

#if defined(__CUDACC__)
#include "tersekv/cuda/kv_cache.cuh"
#else
#include "cuda/host_runtime.hpp"
#endif

namespace on_device {

using tersekv::Index;

#if defined(__CUDACC__)
using Runtime = tersekv::cuda::CudaRuntime;
/// At the start of every test. Without a device it is skipped, or fails where TERSEKV_NO_SKIP is
/// set.
inline void require_device() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return;
  if (std::getenv("TERSEKV_NO_SKIP") != nullptr) {
    FAIL("no CUDA device: " << cudaGetErrorString(code));
  }
  SKIP("no CUDA device: " << cudaGetErrorString(code));
}
#else
using Runtime = host_cuda::Runtime;
inline void require_device() {}
#endif

/// The head_dims of the tests: small ones, for golden cases and as the host is slow, and one
/// whose rows are not a power of two.
template <class Value>
using Dims = std::conditional_t<sizeof(Value) == 4, tersekv::cuda::HeadDims<4, 8, 16, 32, 64, 128>,
                                tersekv::cuda::HeadDims<8, 16, 32, 64, 80, 128>>;

template <class Policy, class Key = float, class Value = Key, class D = Dims<Value>>
using KVCache = tersekv::cuda::BasicKVCache<Policy, Key, Value, Runtime, D>;

/// Numbers in device memory.
template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& from) : buffer_(std::ssize(from)), count_(from.size()) {
    if (!from.empty()) buffer_.copy_in(from, {});
    Runtime::synchronize({});
  }
  explicit Array(Index count, T value = {})
      : Array(std::vector<T>(static_cast<std::size_t>(count), value)) {}
  T* data() const { return buffer_.data(); }
  std::vector<T> host() const {
    std::vector<T> result(count_);
    if (count_ > 0) Runtime::copy_out(result.data(), buffer_.data(), count_ * sizeof(T), {});
    Runtime::synchronize({});
    return result;
  }

 private:
  tersekv::cuda::Buffer<Runtime, T> buffer_;
  std::size_t count_;
};

/// Launches a body of a test.
template <class Body>
void run(tersekv::cuda::Grid grid, int team, const typename Body::Args& args) {
  const Array<std::uint32_t> words(64, 0u);
  Runtime::launch<Body>(grid, team, words.data(), {}, args);
  Runtime::synchronize({});
}

}  // namespace on_device

// Attention of the traces and golden cases, compiled once, in attention_launches.cpp.
#define TERSEKV_TEST_LAUNCH(...)                                                                  \
  template void tersekv::cuda::launch_attention<on_device::Runtime, on_device::Dims<__VA_ARGS__>, \
                                                __VA_ARGS__, __VA_ARGS__, float>(                 \
      tersekv::cuda::AttentionArgs<__VA_ARGS__, __VA_ARGS__, float>&,                             \
      const std::vector<tersekv::Index>&, tersekv::Index, const tersekv::cuda::Tuning&,           \
      on_device::Runtime::Stream)
extern TERSEKV_TEST_LAUNCH(float);
extern TERSEKV_TEST_LAUNCH(tersekv::Half);
extern TERSEKV_TEST_LAUNCH(tersekv::BFloat16);
