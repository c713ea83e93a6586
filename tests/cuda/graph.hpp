// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "cuda/runtime_under_test.hpp"

namespace on_device {

#if defined(__CUDACC__)
/// A CUDA graph of what `calls(stream)` launches. Calls that allocate or copy fail.
class Graph {
 public:
  template <class F>
  explicit Graph(F&& calls) {
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaStreamCreate(&stream_) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    calls(stream_);
    REQUIRE(cudaStreamEndCapture(stream_, &graph_) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable_, graph_, 0) == cudaSuccess);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  /// And waits for it.
  void replay() {
    REQUIRE(cudaGraphLaunch(executable_, stream_) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};
#else
/// The same on the host: launches with the arguments that they had when they were captured.
class Graph {
 public:
  template <class F>
  explicit Graph(F&& calls) {
    const int allocations = Runtime::allocations, copies = Runtime::copies_to_host,
              waits = Runtime::synchronizations;
    Runtime::captured = &launches_;
    calls(Runtime::Stream{});
    Runtime::captured = nullptr;
    REQUIRE(Runtime::allocations == allocations);
    REQUIRE(Runtime::copies_to_host == copies);
    REQUIRE(Runtime::synchronizations == waits);
  }
  void replay() {
    for (const auto& launch : launches_) launch();
  }

 private:
  std::vector<std::function<void()>> launches_;
};
#endif

}  // namespace on_device
