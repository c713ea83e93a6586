// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "caches.hpp"
#include "evaluate.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

namespace llama {

struct Sampling {
  double temperature = 0;  ///< 0: always the likeliest token
  double top_p = 1;        ///< draw from the smallest set of tokens with this much probability
  std::uint64_t seed = 0;
};

/// Draws the next token from one row of logits. Same logits and state, same token.
Token sample(std::span<const float> logits, const Sampling& sampling, std::mt19937_64& random);

struct Generation : Evaluation {  ///< nll and tokens: the generated ones'
  std::vector<Token> output;
  double prompt_seconds = 0;
};

/// Feeds the prompt at once (one compression after it), then up to `max_tokens` of the model's own,
/// one by one. `emit` gets each as it is drawn; an end-of-text token ends it and is not emitted.
Generation generate(const Model& model, const Tokenizer& tokenizer, const CacheRequest& request,
                    std::span<const Token> prompt, Index max_tokens, const Sampling& sampling,
                    const SessionOptions& options, const std::function<void(Token)>& emit);

}  // namespace llama
