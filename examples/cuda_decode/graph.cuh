// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <tersekv/cuda/runtime.cuh>

namespace decode {

using tersekv::cuda::check;

/// A stream that waits for no other unless told to.
struct SideStream {
  SideStream() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "another stream");
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream() { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};

/// The launches of `body` as a CUDA graph, to be replayed.
class Graph {
 public:
  template <class Body>
  Graph(cudaStream_t stream, Body&& body) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of a capture");
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "end of a capture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "making of a graph");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  /// Mean milliseconds of `times` replays, after `warm_up` others. Waits.
  double replay(long times, int warm_up) const {
    for (int i = 0; i < warm_up; ++i) launch();
    const Event start, end;
    check(cudaEventRecord(start.event, stream_), "event");
    for (long i = 0; i < times; ++i) launch();
    check(cudaEventRecord(end.event, stream_), "event");
    check(cudaEventSynchronize(end.event), "waiting for the steps");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event, end.event), "time");
    return static_cast<double>(milliseconds) / static_cast<double>(times);
  }

 private:
  struct Event {
    Event() { check(cudaEventCreate(&event), "event"); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { cudaEventDestroy(event); }
    cudaEvent_t event = nullptr;
  };

  void launch() const { check(cudaGraphLaunch(graph_, stream_), "launch of a graph"); }

  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace decode
