// SPDX-License-Identifier: Apache-2.0

// The kernels whose registers and spills registers.py watches. As a program it launches none, but
// says how large the host takes their arguments to be.

#include <cstdio>
#include <typeinfo>

#include "tersekv/cuda/kv_cache.cuh"
#include "tersekv/tersekv.hpp"

using namespace tersekv;
using namespace tersekv::cuda;

namespace {

template <class Body>
void compile() {
  static_cast<void>(&CudaRuntime::launch<Body>);  // compiled
  std::printf("%zu %s\n", sizeof(typename Body::Args), typeid(Body).name());
}
template <class Codec, int Dim>
void compile_mma() {
  compile<AttentionMmaBody<Codec, Codec, Dim, CudaRuntime::kAttentionWarps>>();
}
template <int Dim>
void compile_prompt() {
  constexpr int warps = CudaRuntime::kAttentionWarps;
  compile<AttentionMmaBody<BFloat16, BFloat16, Dim, warps, kPromptRowWarps<Dim, warps>>>();
}
template <class Codec, int Dim, int Rows>
void compile_plain() {
  compile<AttentionBody<Codec, Codec, Codec, Dim, Rows, CudaRuntime::kAttentionWarps>>();
}
template <class Policy>
void compile_step() {
  compile<StepBody<Policy, BFloat16, BFloat16, BFloat16, CudaRuntime::kTeamThreads>>();
}

}  // namespace

int main() {
  compile_mma<BFloat16, 64>();
  compile_mma<BFloat16, 80>();
  compile_mma<BFloat16, 96>();
  compile_mma<BFloat16, 128>();
  compile_mma<BFloat16, 192>();
  compile_mma<BFloat16, 256>();
  compile_mma<Half, 128>();
  compile_plain<BFloat16, 64, 1>();
  compile_plain<BFloat16, 128, 1>();
  compile_plain<BFloat16, 256, 1>();
  compile_plain<Half, 128, 1>();
  compile_plain<Half, 64, 4>();
  compile_plain<Half, 128, 4>();
  compile_plain<float, 128, 1>();
  compile_plain<float, 128, 4>();
  compile_plain<float, 128, 16>();
  compile_plain<float, 256, 16>();
  compile_step<StreamingLLM>();
  compile_step<H2O>();
  compile_step<ZSMerge>();
  compile_step<KeepKV>();
  compile_step<MorphKV>();
  compile_step<WeightedKV>();
  compile_step<KVzap>();
  compile_prompt<64>();
  compile_prompt<128>();
  compile_prompt<192>();
}
