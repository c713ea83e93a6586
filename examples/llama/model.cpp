// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "quant.hpp"

namespace llama {
namespace {

// Rows that pass through the feed-forward block at once: bounds its scratch memory, and is enough
// for the matrix products to run at full speed.
constexpr Index kFeedForwardRows = 512;

// Weights that one token meets, at least, to be shared among threads. Below, waking the threads
// takes as long as the product, and much longer where something else uses the cores.
constexpr Index kParallelBytes = 4 << 20;

// No model comes near it; products of two dimensions cannot overflow below it.
constexpr Index kMaxDimension = 1 << 24;

[[noreturn]] void fail(const GgufFile& file, const std::string& what) {
  throw std::runtime_error(file.name() + ": " + what);
}

Vector load_vector(const GgufFile& file, const std::string& name, Index size) {
  const Tensor& tensor = file.tensor(name, 1, size);  // its size is checked before anything is made
  Vector vector(size);
  dequantize_row(tensor, 0, vector.data());
  return vector;
}

const Tensor& layer_matrix(const GgufFile& file, Index layer, const char* name, Index outputs,
                           Index inputs) {
  return file.tensor("blk." + std::to_string(layer) + "." + name + ".weight", outputs, inputs);
}

Index dimension(const GgufFile& file, std::string_view key, Index fallback = 0) {
  const Index value = file.has(key) ? file.get_u32(key) : fallback;
  if (value < 1 || value > kMaxDimension) {
    fail(file, std::string(key) + " is " + std::to_string(value) + ", expected 1 to " +
                   std::to_string(kMaxDimension));
  }
  return value;
}

ModelConfig load_config(const GgufFile& file) {
  const std::string_view architecture = file.get_string("general.architecture");
  if (architecture != "llama") {
    fail(file, "architecture is '" + std::string(architecture) + "', expected 'llama'");
  }
  ModelConfig c{};
  c.embedding = dimension(file, "llama.embedding_length");
  c.layers = dimension(file, "llama.block_count");
  c.feed_forward = dimension(file, "llama.feed_forward_length");
  c.q_heads = dimension(file, "llama.attention.head_count");
  c.kv_heads = dimension(file, "llama.attention.head_count_kv", c.q_heads);
  if (c.q_heads % c.kv_heads != 0) {
    fail(file, std::to_string(c.q_heads) + " query heads are no multiple of " +
                   std::to_string(c.kv_heads) + " KV heads");
  }
  c.head_dim = dimension(file, "llama.attention.key_length", c.embedding / c.q_heads);
  if (dimension(file, "llama.attention.value_length", c.head_dim) != c.head_dim) {
    fail(file, "keys and values of different lengths are not supported");
  }
  c.rotated = dimension(file, "llama.rope.dimension_count", c.head_dim);
  if (c.rotated % 2 != 0 || c.rotated > c.head_dim) {
    fail(file, "RoPE turns " + std::to_string(c.rotated) + " of " + std::to_string(c.head_dim) +
                   " dimensions: expected an even number, at most all");
  }
  c.norm_epsilon = file.get_f32("llama.attention.layer_norm_rms_epsilon");
  c.rope_base = file.get_f32("llama.rope.freq_base", 10000.0F);
  c.rope_scale = 1;
  const std::string_view scaling = file.get_string("llama.rope.scaling.type", "none");
  if (scaling == "linear") {
    c.rope_scale = file.get_f32("llama.rope.scaling.factor");
  } else if (scaling != "none") {
    fail(file, "RoPE scaling '" + std::string(scaling) + "' is not supported");
  }
  if (!(c.rope_base > 0) || !(c.rope_scale > 0) || !(c.norm_epsilon >= 0)) {
    fail(file, "RoPE base, RoPE factor or the norm's epsilon is out of range");
  }
  c.vocab_size = file.tensor("token_embd.weight").rows;
  return c;
}

const Tensor& output_tensor(const GgufFile& file, const ModelConfig& config) {
  // Models with tied embeddings have no output matrix of their own.
  const char* name = file.find_tensor("output.weight") ? "output.weight" : "token_embd.weight";
  return file.tensor(name, config.vocab_size, config.embedding);
}

std::vector<double> load_frequencies(const GgufFile& file, const ModelConfig& config) {
  std::vector<double> frequencies(config.rotated / 2);
  for (Index i = 0; i < config.rotated / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotated);
    frequencies[i] = std::pow(config.rope_base, exponent) / config.rope_scale;
  }
  // Long-context models stretch each frequency by a factor of its own.
  if (file.find_tensor("rope_freqs.weight") != nullptr) {
    const Vector factors = load_vector(file, "rope_freqs.weight", config.rotated / 2);
    for (Index i = 0; i < config.rotated / 2; ++i) frequencies[i] /= factors[i];
  }
  return frequencies;
}

// RMSNorm: each row divided by its root mean square, then scaled per dimension.
Matrix normalize(const Eigen::Ref<const Matrix>& x, const Vector& weight, float epsilon) {
  Matrix y(x.rows(), x.cols());
  for (Index row = 0; row < x.rows(); ++row) {
    const float mean_square = x.row(row).squaredNorm() / static_cast<float>(x.cols());
    const float inverse = 1.0F / std::sqrt(mean_square + epsilon);
    y.row(row) = x.row(row).cwiseProduct(weight) * inverse;
  }
  return y;
}

}  // namespace

const Matrix& Weight::dense() const {
  std::call_once(once_, [this] {
    dense_.resize(tensor_->rows, tensor_->cols);
    dequantize(*tensor_, dense_.data());
  });
  return dense_;
}

Model::Layer::Layer(const GgufFile& file, const ModelConfig& c, Index i)
    : attention_norm(
          load_vector(file, "blk." + std::to_string(i) + ".attn_norm.weight", c.embedding)),
      feed_forward_norm(
          load_vector(file, "blk." + std::to_string(i) + ".ffn_norm.weight", c.embedding)),
      query(layer_matrix(file, i, "attn_q", c.q_heads * c.head_dim, c.embedding)),
      key(layer_matrix(file, i, "attn_k", c.kv_heads * c.head_dim, c.embedding)),
      value(layer_matrix(file, i, "attn_v", c.kv_heads * c.head_dim, c.embedding)),
      attention_output(layer_matrix(file, i, "attn_output", c.embedding, c.q_heads * c.head_dim)),
      gate(layer_matrix(file, i, "ffn_gate", c.feed_forward, c.embedding)),
      up(layer_matrix(file, i, "ffn_up", c.feed_forward, c.embedding)),
      down(layer_matrix(file, i, "ffn_down", c.embedding, c.feed_forward)) {}

Model::Model(const GgufFile& file)
    : config_(load_config(file)),
      embedding_(&file.tensor("token_embd.weight", config_.vocab_size, config_.embedding)),
      output_norm_(load_vector(file, "output_norm.weight", config_.embedding)),
      output_(output_tensor(file, config_)) {
  for (Index i = 0; i < config_.layers; ++i) {
    layers_.push_back(std::make_unique<const Layer>(file, config_, i));
  }
  frequencies_ = load_frequencies(file, config_);
}

Session::Session(const Model& model, LayerCaches& caches, SessionOptions options)
    : model_(&model), caches_(&caches), options_(std::move(options)) {}

Matrix Session::feed(std::span<const Token> tokens, Index compress_every) {
  const Index count = static_cast<Index>(tokens.size());
  Matrix x = embed(tokens);
  compute_rotations(count);
  for (Index layer = 0; layer < model_->config().layers; ++layer) {
    attention(layer, x, compress_every);
    feed_forward(model_->layer(layer), x);
    if (options_.on_layer) options_.on_layer(count);
  }
  position_ += count;
  return normalize(x, model_->output_norm(), model_->config().norm_epsilon);
}

Matrix Session::logits(const Eigen::Ref<const Matrix>& hidden) const {
  Matrix y;
  multiply(hidden, {{&model_->output(), &y}});
  return y;
}

Matrix Session::embed(std::span<const Token> tokens) const {
  Matrix x(static_cast<Index>(tokens.size()), model_->config().embedding);
  for (Index i = 0; i < x.rows(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= model_->config().vocab_size) {
      throw std::runtime_error("token " + std::to_string(tokens[i]) +
                               " is outside the model's vocabulary of " +
                               std::to_string(model_->config().vocab_size));
    }
    dequantize_row(model_->embedding(), tokens[i], x.row(i).data());
  }
  return x;
}

void Session::compute_rotations(Index tokens) {
  const std::vector<double>& frequencies = model_->frequencies();
  cos_.resize(tokens, static_cast<Index>(frequencies.size()));
  sin_.resizeLike(cos_);
  for (Index token = 0; token < tokens; ++token) {
    for (Index pair = 0; pair < cos_.cols(); ++pair) {
      const double angle = static_cast<double>(position_ + token) * frequencies[pair];
      cos_(token, pair) = static_cast<float>(std::cos(angle));
      sin_(token, pair) = static_cast<float>(std::sin(angle));
    }
  }
}

void Session::attention(Index index, Matrix& x, Index compress_every) {
  const Model::Layer& layer = model_->layer(index);
  const Matrix hidden = normalize(x, layer.attention_norm, model_->config().norm_epsilon);
  Matrix q, k, v, y;
  multiply(hidden, {{&layer.query, &q}, {&layer.key, &k}, {&layer.value, &v}});
  rotate(q, model_->config().q_heads);
  rotate(k, model_->config().kv_heads);
  Matrix out(q.rows(), q.cols());
  caches_->extend(index, {q.rows(), q.data(), k.data(), v.data(), out.data(), hidden.data()},
                  compress_every);
  multiply(out, {{&layer.attention_output, &y}});
  x += y;
}

void Session::feed_forward(const Model::Layer& layer, Matrix& x) const {
  for (Index first = 0; first < x.rows(); first += kFeedForwardRows) {
    auto rows = x.middleRows(first, std::min(kFeedForwardRows, x.rows() - first));
    const Matrix hidden = normalize(rows, layer.feed_forward_norm, model_->config().norm_epsilon);
    Matrix gate, up, y;
    multiply(hidden, {{&layer.gate, &gate}, {&layer.up, &up}});
    // SwiGLU: silu(gate) * up
    gate.array() = gate.array() / (1.0F + (-gate.array()).exp()) * up.array();
    multiply(gate, {{&layer.down, &y}});
    rows += y;
  }
}

// A GGUF file of this architecture has its query and key rows permuted so that the two dimensions
// that turn together are neighbours.
void Session::rotate(Matrix& x, Index heads) const {
  const Index head_dim = model_->config().head_dim;
  for (Index row = 0; row < x.rows(); ++row) {
    for (Index head = 0; head < heads; ++head) {
      float* values = x.row(row).data() + head * head_dim;
      for (Index pair = 0; pair < cos_.cols(); ++pair) {
        const float c = cos_(row, pair), s = sin_(row, pair);
        const float a = values[2 * pair], b = values[2 * pair + 1];
        values[2 * pair] = a * c - b * s;
        values[2 * pair + 1] = a * s + b * c;
      }
    }
  }
}

void Session::multiply(const Eigen::Ref<const Matrix>& x,
                       std::initializer_list<Output> outputs) const {
  Index bytes = 0;
  for (const Output& output : outputs) {
    const Tensor& tensor = output.weight->tensor();
    output.y->resize(x.rows(), tensor.rows);
    bytes += tensor.rows * tensor.row_bytes;
  }
  const int threads = bytes < kParallelBytes ? 1 : options_.threads;
  if (x.rows() > 1) {
    for (const Output& output : outputs) {
      output.y->noalias() = x * output.weight->dense().transpose();
    }
  } else if (options_.exact) {
    for (const Output& output : outputs) {
      matvec_exact(output.weight->tensor(), x.data(), output.y->data(), threads);
    }
  } else {
    std::vector<Product> products;
    for (const Output& output : outputs) {
      products.push_back({&output.weight->tensor(), output.y->data()});
    }
    matvec(products, x.data(), threads);
  }
}

}  // namespace llama
