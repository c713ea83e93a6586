// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "cuda/runtime_under_test.hpp"

namespace on_device {

/// What is launched on the stream that it is given. (A function, no template: beside some of the
/// golden tests, nvcc 13's front end does not come to an end on one.)
using Calls = std::function<void(Runtime::Stream)>;

#if defined(__CUDACC__)
/// A CUDA graph of calls. Those that allocate or copy fail.
class Graph {
 public:
  explicit Graph(const Calls& calls) {
    succeed(cudaDeviceSynchronize());
    succeed(cudaStreamCreate(&stream_));
    succeed(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    calls(stream_);
    succeed(cudaStreamEndCapture(stream_, &graph_));
    succeed(cudaGraphInstantiate(&executable_, graph_, 0));
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
    succeed(cudaGraphLaunch(executable_, stream_));
    succeed(cudaStreamSynchronize(stream_));
  }

 private:
  static void succeed(cudaError_t code) {
    if (code != cudaSuccess) FAIL(cudaGetErrorString(code));
  }
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};
#else
/// The same on the host: launches with the arguments that they had when they were captured.
class Graph {
 public:
  explicit Graph(const Calls& calls) {
    const int allocations = Runtime::allocations, copies = Runtime::copies_to_host,
              waits = Runtime::synchronizations;
    Runtime::captured = &launches_;
    calls(Runtime::Stream{});
    Runtime::captured = nullptr;
    REQUIRE(Runtime::joined == Runtime::given);  // CUDA refuses the end of a capture otherwise
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
