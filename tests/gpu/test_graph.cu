// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cuda/device_tokens.hpp"
#include "tersekv/tersekv.hpp"

// What only a device has: graphs, and a runtime that can say no.

using namespace tersekv;
using on_device::Tokens;

namespace {

using Dims = tersekv::cuda::HeadDims<32>;
constexpr Index kHeads = 2, kGroup = 4, kDim = 32;

CacheConfig config(Index budget) {
  return {.num_sequences = 2,
          .num_q_heads = kHeads * kGroup,
          .num_kv_heads = kHeads,
          .head_dim = kDim,
          .budget = budget};
}

/// Replays of a captured step against plain launches, on equal inputs, while lengths change.
template <class Codec, class Policy>
void check_replays(const Policy& policy) {
  using Tokens = on_device::TokensOf<Codec>;
  support::Random random(1);
  const tersekv::cuda::DeviceOptions options{
      .max_chunk = 64, .max_length = 192, .tuning = {.plan_length = 192}};
  on_device::KVCache<Policy, Codec, Codec, Dims> plain(config(40), policy, options),
      replayed(config(40), policy, options);
  for (Index s = 0; s < 2; ++s) {
    const Tokens prompt(random, 20 + 30 * s, kHeads, kGroup, kDim);
    plain.extend(prompt.batch(s));
    replayed.extend(prompt.batch(s));
  }
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const Tokens token(random, 2, kHeads, kGroup, kDim);
  cudaGraph_t graph;
  cudaGraphExec_t step;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  replayed.extend(token.batch({0, 2}), {}, stream);  // allocates or copies: the capture fails
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&step, graph, 0) == cudaSuccess);
  for (int i = 0; i < 50; ++i) {
    REQUIRE(cudaGraphLaunch(step, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<float> got = token.out();
    plain.extend(token.batch({0, 2}));
    plain.synchronize();
    CHECK(token.out() == got);
  }
  replayed.synchronize(stream);
  for (Index s = 0; s < 2; ++s) {
    for (Index h = 0; h < kHeads; ++h) CHECK(plain.length(s, h) == replayed.length(s, h));
  }
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

struct NoBody {
  struct Args {};
  static constexpr int kThreads = 32;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context&, const Args&) {}
};

}  // namespace

TEST_CASE("graph: a captured step replays as launches would, bit for bit", "[small]") {
  on_device::require_device();
  check_replays<Half>(Full{});
  check_replays<Half>(StreamingLLM{});
  check_replays<Half>(H2O{});
  check_replays<Half>(ZSMerge{});
  check_replays<Half>(KeepKV{});
  check_replays<float>(ZSMerge{});
}

// Not among the small ones: a tool that reports failed calls would report these.
TEST_CASE("errors: a launch or an allocation that fails throws where it was made") {
  on_device::require_device();
  using tersekv::cuda::CudaRuntime;
  CHECK_THROWS_AS(CudaRuntime::allocate(std::size_t{1} << 60), tersekv::cuda::OutOfMemory);
  CHECK_THROWS_AS(CudaRuntime::launch<NoBody>({1, 100000, 1}, 1, nullptr, {}, {}),
                  tersekv::cuda::Error);
  CudaRuntime::launch<NoBody>({}, 1, nullptr, {}, {});  // and is forgotten
  CudaRuntime::synchronize({});
}
