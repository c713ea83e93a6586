// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "caches.hpp"
#include "model.hpp"

namespace llama {

/// Where time goes.
struct TokenSeconds {
  double projections = 0;  ///< products with the model's weights
  double attention = 0;    ///< with keeping keys and values
  double policy = 0;       ///< on a device a part of attention
  double rest = 0;         ///< norms, rotations, activation functions, choosing the token

  double total() const { return projections + attention + policy + rest; }
};

struct SpeedOptions {
  Index context = 0;  ///< tokens of the prompt
  Index chunk = 0;    ///< of which are fed at once, one compression after each
  Index tokens = 0;   ///< to generate after it
  SessionOptions session = {};
};

struct Speed {
  TokenSeconds prompt;   ///< all of it, until the first token is chosen
  TokenSeconds token;    ///< mean of the generated tokens' middle half by time
  CacheTotals cache;     ///< in the end
  Index full_bytes = 0;  ///< of a cache that has kept everything
};

/// One run of several.
struct SpeedRow {
  Index context;
  CacheRequest request;
  Speed speed;

  double prompt_rate() const { return static_cast<double>(context) / speed.prompt.total(); }
  double decode_rate() const { return 1 / speed.token.total(); }
};

/// Has the weights made ready, which the first tokens would else wait for.
void warm_up(const Model& model, const CacheRequest& request, const SessionOptions& session);

/// Feeds a prompt of arbitrary tokens (speed does not depend on which) and generates greedily, one
/// token at a time, the policy after each.
Speed measure_speed(const Model& model, const CacheRequest& request, const SpeedOptions& options);

}  // namespace llama
