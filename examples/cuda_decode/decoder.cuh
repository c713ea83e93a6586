// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublas_v2.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <tersekv/cuda/memory.hpp>
#include <tersekv/cuda/runtime.cuh>
#include <tersekv/view.hpp>
#include <vector>

#include "kernels.cuh"

namespace decode {

using tersekv::TokenView;
template <class T>
using Buffer = tersekv::cuda::Buffer<tersekv::cuda::CudaRuntime, T>;

/// Llama-3-8B's.
struct ModelShape {
  Index hidden = 4096, q_heads = 32, kv_heads = 8, head_dim = 128, ffn = 14336, vocab = 128256;
  Index q_width() const { return q_heads * head_dim; }
  Index kv_width() const { return kv_heads * head_dim; }
  Index qkv_width() const { return q_width() + 2 * kv_width(); }
};

inline void check_cublas(cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("cuBLAS: ") + doing + ": " + cublasGetStatusString(status));
}

/// Of one layer, in one token per sequence, on their way to its cache. q, k and v are parts of the
/// same rows: the cache reads them where they are.
struct StepRows {
  TokenView<const BFloat16> q, k, v;
  TokenView<BFloat16> out;
};

/// Random weights, and all of a decode step but the caches. One stream.
class Decoder {
 public:
  Decoder(Index layers, Index batch, cudaStream_t stream)
      : batch_(batch),
        stream_(stream),
        x_(batch * shape_.hidden),
        h_(batch * shape_.hidden),
        qkv_(batch * shape_.qkv_width()),
        attention_(batch * shape_.q_width()),
        gate_up_(batch * 2 * shape_.ffn),
        activation_(batch * shape_.ffn),
        logits_(batch * shape_.vocab),
        output_(random_weight(shape_.vocab, shape_.hidden)),
        workspace_(kWorkspaceBytes),
        count_(1) {
    count_.zero(stream);
    for (Index i = 0; i < layers; ++i) {
      layers_.push_back({random_weight(shape_.qkv_width(), shape_.hidden),
                         random_weight(shape_.hidden, shape_.q_width()),
                         random_weight(2 * shape_.ffn, shape_.hidden),
                         random_weight(shape_.hidden, shape_.ffn)});
    }
    check_cublas(cublasCreate(&cublas_), "start");
    // In this order: a stream brings cuBLAS's own workspace with it, which a graph must not need.
    check_cublas(cublasSetStream(cublas_, stream), "stream");
    check_cublas(cublasSetWorkspace(cublas_, workspace_.data(), kWorkspaceBytes), "workspace");
    tersekv::cuda::CudaRuntime::synchronize(stream);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() {
    if (cublas_ != nullptr) cublasDestroy(cublas_);
  }

  const ModelShape& shape() const { return shape_; }
  Index layers() const { return static_cast<Index>(layers_.size()); }
  Index batch() const { return batch_; }
  cudaStream_t stream() const { return stream_; }
  /// Other numbers in every step.
  Random random(std::uint32_t seed) const { return {seed, count_.data()}; }
  void count() const { count_step(count_.data(), stream_); }

  /// A token of every sequence through all layers; attend(layer, rows) is the cache's part.
  /// Asynchronous.
  template <class Attend>
  void step(Attend&& attend) {
    const ModelShape& s = shape_;
    fill(x_.data(), batch_ * s.hidden, 1, random(0), stream_);  // for an embedding
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      rms_norm(h_.data(), x_.data(), batch_, s.hidden, stream_);
      multiply(layer.qkv, h_, qkv_, s.qkv_width(), s.hidden);
      attend(static_cast<Index>(i), rows());
      multiply(layer.attention_output, attention_, x_, s.hidden, s.q_width(), 1);
      rms_norm(h_.data(), x_.data(), batch_, s.hidden, stream_);
      multiply(layer.gate_up, h_, gate_up_, 2 * s.ffn, s.hidden);
      swiglu(activation_.data(), gate_up_.data(), batch_, s.ffn, stream_);
      multiply(layer.down, activation_, x_, s.hidden, s.ffn, 1);
    }
    rms_norm(h_.data(), x_.data(), batch_, s.hidden, stream_);
    multiply(output_, h_, logits_, s.vocab, s.hidden);
    count();
  }
  /// The caches' part of a step alone, on the rows of the last one.
  template <class Attend>
  void attend_only(Attend&& attend) const {
    for (Index i = 0; i < layers(); ++i) attend(i, rows());
    count();
  }

 private:
  static constexpr Index kWorkspaceBytes = Index{32} << 20;

  struct Layer {
    Buffer<BFloat16> qkv, attention_output, gate_up, down;
  };

  /// [outputs, inputs], such that outputs are as large as inputs.
  Buffer<BFloat16> random_weight(Index outputs, Index inputs) {
    Buffer<BFloat16> weight(outputs * inputs);
    fill(weight.data(), weight.count(), 1 / std::sqrt(static_cast<float>(inputs)), {++seed_},
         stream_);
    return weight;
  }

  StepRows rows() const {
    const ModelShape& s = shape_;
    const auto part = [&](Index first, Index heads) {
      TokenView<const BFloat16> view =
          tersekv::nhd_view<const BFloat16>(qkv_.data() + first, batch_, heads, s.head_dim);
      view.token_stride = s.qkv_width();
      return view;
    };
    return {part(0, s.q_heads), part(s.q_width(), s.kv_heads),
            part(s.q_width() + s.kv_width(), s.kv_heads),
            tersekv::nhd_view(attention_.data(), batch_, s.q_heads, s.head_dim)};
  }

  /// y = x weight^T + beta y, rows of x and y one per sequence. cuBLAS counts columns first, so it
  /// is told of the transposes.
  void multiply(const Buffer<BFloat16>& weight, const Buffer<BFloat16>& x,
                const Buffer<BFloat16>& y, Index outputs, Index inputs, float beta = 0) {
    const float alpha = 1;
    const int m = static_cast<int>(outputs), n = static_cast<int>(batch_),
              k = static_cast<int>(inputs);
    check_cublas(cublasGemmEx(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &alpha, weight.data(),
                              CUDA_R_16BF, k, x.data(), CUDA_R_16BF, k, &beta, y.data(),
                              CUDA_R_16BF, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "product");
  }

  ModelShape shape_;
  Index batch_;
  cudaStream_t stream_;
  std::uint32_t seed_ = 1000;  // of the weights; steps have the small ones
  Buffer<BFloat16> x_, h_, qkv_, attention_, gate_up_, activation_, logits_, output_;
  std::vector<Layer> layers_;
  Buffer<std::byte> workspace_;
  Buffer<std::uint32_t> count_;
  cublasHandle_t cublas_ = nullptr;
};

}  // namespace decode
