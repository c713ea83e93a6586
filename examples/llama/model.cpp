// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "product.hpp"
#include "quant.hpp"

namespace llama {
namespace {

// Rows that pass through the feed-forward block at once: bounds its scratch memory, and is enough
// for the matrix products to run at full speed.
constexpr Index kFeedForwardRows = 512;

// Threads share the outputs of Eigen's products in so many at a time: a multiple of what its loops
// take at once on any processor, so that every sum is added up as by one thread alone.
constexpr Index kOutputBlock = 48;

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
  const Index value = fallback == 0 || file.has(key) ? file.get_u32(key) : fallback;
  if (value < 1 || value > kMaxDimension) {
    fail(file, std::string(key) + " is " + std::to_string(value) + ", expected 1 to " +
                   std::to_string(kMaxDimension));
  }
  return value;
}

ModelConfig load_config(const GgufFile& file) {
  const std::string_view architecture = file.get_string("general.architecture");
  if (architecture != "llama") {
    fail(file, "architecture is " + quoted(architecture) + ", expected 'llama'");
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
  // A file that names a factor alone, or has it under its older name, means linear scaling.
  const std::string_view scaling = file.get_string("llama.rope.scaling.type", "linear");
  if (scaling == "linear") {
    c.rope_scale =
        file.get_f32("llama.rope.scaling.factor", file.get_f32("llama.rope.scale_linear", 1.0F));
  } else if (scaling != "none") {
    fail(file, "RoPE scaling " + quoted(scaling) + " is not supported");
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

// Adds what passes until it goes out of scope.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

// f(row) for every row, shared by the team; a single row is not worth it. Row by row, so that a
// row's bits do not depend on its neighbours: where Eigen's vectors begin, and so how exponentials
// are rounded, depends on what it is given.
template <class F>
void for_rows(Team& team, Index rows, F&& f) {
  if (rows == 1) return f(Index{0});
  team.split(rows, [&](Index first, Index last) {
    for (Index row = first; row < last; ++row) f(row);
  });
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
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.ends_with(".bias")) fail(file, quoted(name) + ": biases are not supported");
  }
}

void Model::pack() const {
  std::call_once(pack_once_, [this] {
    std::vector<const Weight*> weights;
    for (const auto& layer : layers_) {
      for (const Weight* weight :
           {&layer->query, &layer->key, &layer->value, &layer->attention_output, &layer->gate,
            &layer->up, &layer->down}) {
        weights.push_back(weight);
      }
    }
    weights.push_back(&output_);
    std::erase_if(weights, [](const Weight* w) { return !is_quantised(w->tensor().type); });
    Index bytes = 0;
    for (const Weight* weight : weights) bytes += PackedWeight::bytes(weight->tensor());
    if (bytes == 0) return;
    std::byte* at = packed_.emplace(bytes).data();
    for (const Weight* weight : weights) {
      weight->packed_.emplace(weight->tensor(), at);
      at += PackedWeight::bytes(weight->tensor());
    }
  });
}

Session::Session(const Model& model, LayerCaches& caches, SessionOptions options)
    : model_(&model), caches_(&caches), options_(std::move(options)) {
  if (!options_.exact) model.pack();
}

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
  Matrix hidden;
  normalize(x, model_->output_norm(), hidden);
  return hidden;
}

Matrix Session::logits(const Eigen::Ref<const Matrix>& hidden) {
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
  normalize(x, layer.attention_norm, hidden_);
  multiply(hidden_, {{&layer.query, &q_}, {&layer.key, &k_}, {&layer.value, &v_}});
  rotate(q_, model_->config().q_heads);
  rotate(k_, model_->config().kv_heads);
  out_.resizeLike(q_);
  {
    const Stopwatch stopwatch(seconds_.caches);
    caches_->extend(index,
                    {q_.rows(), q_.data(), k_.data(), v_.data(), out_.data(), hidden_.data()},
                    compress_every);
  }
  multiply(out_, {{&layer.attention_output, &y_}});
  x += y_;
}

void Session::feed_forward(const Model::Layer& layer, Matrix& x) {
  for (Index first = 0; first < x.rows(); first += kFeedForwardRows) {
    auto rows = x.middleRows(first, std::min(kFeedForwardRows, x.rows() - first));
    normalize(rows, layer.feed_forward_norm, hidden_);
    multiply(hidden_, {{&layer.gate, &gate_}, {&layer.up, &up_}});
    for_rows(*options_.team, rows.rows(), [&](Index row) {
      auto gate = gate_.row(row).array();  // SwiGLU: silu(gate) * up
      gate = gate / (1.0F + (-gate).exp()) * up_.row(row).array();
    });
    multiply(gate_, {{&layer.down, &y_}});
    rows += y_;
  }
}

// A GGUF file of this architecture has its query and key rows permuted so that the two dimensions
// that turn together are neighbours.
void Session::rotate(Matrix& x, Index heads) const {
  const Index head_dim = model_->config().head_dim;
  for_rows(*options_.team, x.rows(), [&](Index row) {
    for (Index head = 0; head < heads; ++head) {
      float* values = x.row(row).data() + head * head_dim;
      for (Index pair = 0; pair < cos_.cols(); ++pair) {
        const float c = cos_(row, pair), s = sin_(row, pair);
        const float a = values[2 * pair], b = values[2 * pair + 1];
        values[2 * pair] = a * c - b * s;
        values[2 * pair + 1] = a * s + b * c;
      }
    }
  });
}

// RMSNorm: each row divided by its root mean square, then scaled per dimension.
void Session::normalize(const Eigen::Ref<const Matrix>& x, const Vector& weight, Matrix& y) const {
  y.resize(x.rows(), x.cols());
  for_rows(*options_.team, x.rows(), [&](Index row) {
    const float mean_square = x.row(row).squaredNorm() / static_cast<float>(x.cols());
    const float inverse = 1.0F / std::sqrt(mean_square + model_->config().norm_epsilon);
    y.row(row) = x.row(row).cwiseProduct(weight) * inverse;
  });
}

void Session::multiply(const Eigen::Ref<const Matrix>& x, std::initializer_list<Output> outputs) {
  const Stopwatch stopwatch(seconds_.projections);
  std::vector<Product> rounded;
  for (const auto& [weight, y] : outputs) {
    const Tensor& tensor = weight->tensor();
    y->resize(x.rows(), tensor.rows);
    if (!options_.exact && is_quantised(tensor.type)) {
      rounded.push_back({&weight->packed(), y->data()});
    } else if (x.rows() > 1) {
      const Matrix& dense = weight->dense();
      const Index blocks = (dense.rows() + kOutputBlock - 1) / kOutputBlock;
      options_.team->split(blocks, [&](Index from, Index to) {
        const Index first = from * kOutputBlock;
        const Index count = std::min(to * kOutputBlock, dense.rows()) - first;
        y->middleCols(first, count).noalias() = x * dense.middleRows(first, count).transpose();
      });
    } else {
      matvec_exact(tensor, x.data(), y->data(), *options_.team);
    }
  }
  if (rounded.empty()) return;
  rounded_.round(x.data(), x.rows(), x.cols(), *options_.team);
  llama::multiply(rounded, rounded_, *options_.team);
}

}  // namespace llama
