// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "caches.hpp"
#include "gguf.hpp"
#include "large_memory.hpp"
#include "packed_weight.hpp"
#include "rounded_rows.hpp"
#include "team.hpp"
#include "tokenizer.hpp"

namespace llama {

/// One row per token.
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Matrix<float, 1, Eigen::Dynamic, Eigen::RowMajor>;

struct ModelConfig {
  Index vocab_size, embedding, layers, q_heads, kv_heads, head_dim, feed_forward;
  Index rotated;  ///< leading dimensions of a head that RoPE turns
  float norm_epsilon;
  double rope_base;
  double rope_scale;  ///< positions are divided by it (linear scaling; 1 = none)
};

/// A weight matrix [outputs, inputs], as the file stores it and in the two forms that products
/// read, each made when it is first needed.
class Weight {
 public:
  explicit Weight(const Tensor& tensor) : tensor_(&tensor) {}

  const Tensor& tensor() const { return *tensor_; }
  /// All of it in float. Any number of threads may ask; the first does the work.
  const Matrix& dense() const;
  /// Of a weight that is_quantised(), after Model::pack().
  const PackedWeight& packed() const { return *packed_; }

 private:
  friend class Model;
  const Tensor* tensor_;
  mutable std::once_flag once_;
  mutable Matrix dense_;
  mutable std::optional<PackedWeight> packed_;
};

/// The weights of a Llama-family model, read-only and shared by any number of sessions.
class Model {
 public:
  struct Layer {
    Layer(const GgufFile& file, const ModelConfig& config, Index index);

    Vector attention_norm, feed_forward_norm;
    Weight query, key, value, attention_output;
    Weight gate, up, down;
  };

  /// Borrows the file's tensors: it must outlive the model. Throws std::runtime_error naming what
  /// is missing, of the wrong shape, or not supported.
  explicit Model(const GgufFile& file);

  /// Makes the quantised weights' packed forms, one after the other in the order of their use. Any
  /// number of threads may ask; the first does the work.
  void pack() const;

  const ModelConfig& config() const { return config_; }
  CacheShape cache_shape() const {
    return {config_.layers, config_.q_heads, config_.kv_heads, config_.head_dim, config_.embedding};
  }
  const Layer& layer(Index index) const { return *layers_[index]; }
  const Tensor& embedding() const { return *embedding_; }
  const Vector& output_norm() const { return output_norm_; }
  const Weight& output() const { return output_; }
  /// Radians that each pair of a head's dimensions turns per token: [rotated / 2].
  const std::vector<double>& frequencies() const { return frequencies_; }

 private:
  ModelConfig config_;
  const Tensor* embedding_;
  std::vector<std::unique_ptr<const Layer>> layers_;
  Vector output_norm_;
  Weight output_;
  std::vector<double> frequencies_;
  mutable std::once_flag pack_once_;
  mutable std::optional<LargeMemory> packed_;
};

struct SessionOptions {
  Team* team = &Team::of_one();  ///< borrowed
  /// Activations meet quantised weights in float; otherwise rounded to 16 bits (product.hpp), which
  /// is several times as fast.
  bool exact = true;
  /// Called with the number of tokens whenever they have passed one of the layers.
  std::function<void(Index)> on_layer = nullptr;
};

/// What a session has spent on the products with weights, and in the caches.
struct SessionSeconds {
  double projections = 0;
  double caches = 0;
};

/// One sequence on its way through a model. Model and caches are borrowed.
class Session {
 public:
  Session(const Model& model, LayerCaches& caches, SessionOptions options);

  /// Feeds the next tokens of the sequence and returns their final hidden states, normalised:
  /// [tokens, embedding]. The policy runs after every `compress_every` tokens (0: once, at the end;
  /// kNever: not at all). Throws std::runtime_error for a token outside the vocabulary.
  Matrix feed(std::span<const Token> tokens, Index compress_every);

  /// Scores of every token of the vocabulary to come next: [rows, vocab_size]. A caller with many
  /// rows asks for a few at a time.
  Matrix logits(const Eigen::Ref<const Matrix>& hidden);

  Index position() const { return position_; }  ///< tokens fed so far
  const SessionSeconds& seconds() const { return seconds_; }

 private:
  struct Output {
    const Weight* weight;
    Matrix* y;
  };

  Matrix embed(std::span<const Token> tokens) const;
  void compute_rotations(Index tokens);
  void attention(Index layer, Matrix& x, Index compress_every);
  void feed_forward(const Model::Layer& layer, Matrix& x);
  void rotate(Matrix& x, Index heads) const;
  void normalize(const Eigen::Ref<const Matrix>& x, const Vector& weight, Matrix& y) const;
  void multiply(const Eigen::Ref<const Matrix>& x, std::initializer_list<Output> outputs);

  const Model* model_;
  LayerCaches* caches_;
  SessionOptions options_;
  Index position_ = 0;
  Matrix cos_, sin_;  // [tokens of this feed, rotated / 2]
  // Of the layer at hand; kept, as memory that is new to a process costs more than it.
  Matrix hidden_, q_, k_, v_, out_, gate_, up_, y_;
  RoundedRows rounded_;
  SessionSeconds seconds_;
};

}  // namespace llama
