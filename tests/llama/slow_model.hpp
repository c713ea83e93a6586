// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"
#include "tiny_model.hpp"

namespace llama_test {

/// The model once more, in double precision, from the definitions, one token and one number at a
/// time.
class SlowModel {
 public:
  using Row = std::vector<double>;
  explicit SlowModel(const TinyModel& model) : m_(model), keys_(m_.layers), values_(m_.layers) {}

  Row next(llama::Token token) {
    Row x(m_.embedding);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = m_.weights.at("token_embd.weight")[token * x.size() + i];
    }
    for (std::uint32_t layer = 0; layer < m_.layers; ++layer) {
      add(x, attention(layer, norm(x, name(layer, "attn_norm"))));
      add(x, feed_forward(layer, norm(x, name(layer, "ffn_norm"))));
    }
    ++position_;
    return product(m_.tied ? "token_embd.weight" : "output.weight", norm(x, "output_norm.weight"));
  }

 private:
  static std::string name(std::uint32_t layer, const std::string& part) {
    return "blk." + std::to_string(layer) + "." + part + ".weight";
  }
  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Row product(const std::string& weight, const Row& x) const {
    const std::vector<float>& w = m_.weights.at(weight);
    Row y(w.size() / x.size());
    for (std::size_t r = 0; r < y.size(); ++r) {
      for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }
  Row norm(const Row& x, const std::string& weight) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double rms = std::sqrt(squares / static_cast<double>(x.size()) + m_.epsilon);
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / rms * m_.weights.at(weight)[i];
    return y;
  }
  void rotate(Row& heads) const {
    for (std::size_t start = 0; start < heads.size(); start += m_.head_dim) {
      for (std::uint32_t i = 0; i < m_.rotated / 2; ++i) {
        double frequency = std::pow(m_.rope_base, -2.0 * i / m_.rotated) / m_.rope_scale;
        if (m_.stretched) frequency /= m_.weights.at("rope_freqs.weight")[i];
        const double angle = position_ * frequency;
        double& a = heads[start + 2 * i];
        double& b = heads[start + 2 * i + 1];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }
  Row attention(std::uint32_t layer, const Row& x) {
    Row q = product(name(layer, "attn_q"), x), k = product(name(layer, "attn_k"), x);
    rotate(q);
    rotate(k);
    keys_[layer].push_back(k);
    values_[layer].push_back(product(name(layer, "attn_v"), x));
    Row out(q.size());
    for (std::uint32_t head = 0; head < m_.q_heads; ++head) {
      const std::uint32_t at = head * m_.head_dim;
      const std::uint32_t shared = head / (m_.q_heads / m_.kv_heads) * m_.head_dim;
      double total = 0;
      Row sum(m_.head_dim);
      for (std::size_t t = 0; t < keys_[layer].size(); ++t) {
        double logit = 0;
        for (std::uint32_t i = 0; i < m_.head_dim; ++i) {
          logit += q[at + i] * keys_[layer][t][shared + i] / std::sqrt(double{m_.head_dim * 1.0});
        }
        total += std::exp(logit);
        for (std::uint32_t i = 0; i < m_.head_dim; ++i) {
          sum[i] += std::exp(logit) * values_[layer][t][shared + i];
        }
      }
      for (std::uint32_t i = 0; i < m_.head_dim; ++i) out[at + i] = sum[i] / total;
    }
    return product(name(layer, "attn_output"), out);
  }
  Row feed_forward(std::uint32_t layer, const Row& x) const {
    Row gate = product(name(layer, "ffn_gate"), x);
    const Row up = product(name(layer, "ffn_up"), x);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return product(name(layer, "ffn_down"), gate);
  }

  const TinyModel& m_;
  std::vector<std::vector<Row>> keys_, values_;  // [layer][token]
  double position_ = 0;
};

}  // namespace llama_test
