// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gguf_builder.hpp"
#include "tersekv/element.hpp"

namespace llama_test {

/// A random model small enough to be computed by hand, as a file and as plain numbers.
struct TinyModel {
  std::uint32_t vocab = 29, embedding = 24, layers = 3, q_heads = 6, kv_heads = 2, head_dim = 4,
                feed_forward = 20, rotated = 4;
  float epsilon = 1e-5f, rope_base = 100.0f, rope_scale = 1.0f;
  const char* rope_scale_key = "llama.rope.scaling.factor";
  bool names_scaling = true;             ///< says that it is linear
  bool tied = false, stretched = false;  ///< stretched: rope_freqs.weight is given
  bool biased = false;                   ///< one matrix is
  bool quantised = false;                ///< matrices in Q8_0; their inputs must be multiples of 32
  std::uint32_t seed = 1;

  std::map<std::string, std::vector<float>> weights = {};  ///< [rows, cols] by name

  /// Draws the weights and writes the file.
  std::vector<std::byte> build() {
    std::mt19937 random(seed);
    GgufBuilder file;
    file.text("general.architecture", "llama");
    const auto put = [&](const char* key, std::uint32_t value) {
      file.value(std::string("llama.") + key, u32, value);
    };
    put("embedding_length", embedding);
    put("block_count", layers);
    put("feed_forward_length", feed_forward);
    put("attention.head_count", q_heads);
    put("attention.head_count_kv", kv_heads);
    put("attention.key_length", head_dim);
    put("attention.value_length", head_dim);
    put("rope.dimension_count", rotated);
    file.value("llama.attention.layer_norm_rms_epsilon", f32, epsilon);
    file.value("llama.rope.freq_base", f32, rope_base);
    if (rope_scale != 1.0f) {
      if (names_scaling) file.text("llama.rope.scaling.type", "linear");
      file.value(rope_scale_key, f32, rope_scale);
    }
    const auto tensor = [&](const std::string& name, std::uint32_t rows, std::uint32_t cols,
                            float mean, float deviation) {
      std::normal_distribution<float> normal(mean, deviation);
      std::vector<float>& values = weights[name];
      values.resize(std::size_t{rows} * cols);
      for (float& value : values) value = normal(random);
      std::vector<std::uint64_t> shape = {cols};
      if (rows > 1) shape.push_back(rows);
      if (quantised && rows > 1) {
        file.tensor(name, shape, 8, quantise(values));
      } else {
        file.tensor(name, shape, 0, std::as_bytes(std::span(values)));
      }
    };
    const std::uint32_t q_rows = q_heads * head_dim, kv_rows = kv_heads * head_dim;
    tensor("token_embd.weight", vocab, embedding, 0, 1);
    tensor("output_norm.weight", 1, embedding, 1, 0.2f);
    if (!tied) tensor("output.weight", vocab, embedding, 0, 0.3f);
    if (biased) tensor("blk.1.attn_k.bias", 1, kv_heads * head_dim, 0, 1);
    if (stretched) tensor("rope_freqs.weight", 1, rotated / 2, 3, 0.5f);
    for (std::uint32_t i = 0; i < layers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      tensor(layer + "attn_norm.weight", 1, embedding, 1, 0.2f);
      tensor(layer + "ffn_norm.weight", 1, embedding, 1, 0.2f);
      tensor(layer + "attn_q.weight", q_rows, embedding, 0, 0.4f);
      tensor(layer + "attn_k.weight", kv_rows, embedding, 0, 0.4f);
      tensor(layer + "attn_v.weight", kv_rows, embedding, 0, 0.3f);
      tensor(layer + "attn_output.weight", embedding, q_rows, 0, 0.3f);
      tensor(layer + "ffn_gate.weight", feed_forward, embedding, 0, 0.3f);
      tensor(layer + "ffn_up.weight", feed_forward, embedding, 0, 0.3f);
      tensor(layer + "ffn_down.weight", embedding, feed_forward, 0, 0.3f);
    }
    return file.build();
  }

 private:
  // Q8_0 blocks of the values, which become what these say.
  static std::vector<std::byte> quantise(std::vector<float>& values) {
    std::vector<std::byte> blocks;
    for (auto block = values.begin(); block != values.end(); block += 32) {
      const float largest = *std::max_element(block, block + 32),
                  least = *std::min_element(block, block + 32);
      const auto half = tersekv::from_float<tersekv::Half>(std::max(largest, -least) / 127);
      const float scale = tersekv::to_float(half);
      for (const int byte : {half.bits & 255, half.bits >> 8}) {
        blocks.push_back(static_cast<std::byte>(byte));
      }
      for (auto value = block; value != block + 32; ++value) {
        const float level = std::clamp(std::round(*value / scale), -127.0f, 127.0f);
        blocks.push_back(static_cast<std::byte>(static_cast<std::int8_t>(level)));
        *value = scale * level;
      }
    }
    return blocks;
  }
};

}  // namespace llama_test
