// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "team.hpp"

namespace llama {

using Index = std::int64_t;

/// `compress_every` of LayerCaches::extend: nothing is evicted.
inline constexpr Index kNever = -1;

struct CacheShape {
  Index layers, q_heads, kv_heads, head_dim;
  Index embedding;  ///< of the hidden states that surrogates read
};

/// New tokens on their way through one layer; every array is contiguous, one row per token.
struct LayerRows {
  Index tokens;
  const float* q;       ///< [tokens, q_heads, head_dim], rotated
  const float* k;       ///< [tokens, kv_heads, head_dim], rotated
  const float* v;       ///< [tokens, kv_heads, head_dim]
  float* out;           ///< [tokens, q_heads, head_dim]
  const float* hidden;  ///< [tokens, embedding]: what q, k and v were computed from
};

/// What all layers and heads hold at the moment, summed. On a device `bytes` is without the pages
/// that no head has: the pool there is made for the longest sequence.
struct CacheTotals {
  Index kept_entries = 0;
  Index seen_entries = 0;
  Index bytes = 0;
  Index evictions = 0;
  Index merges = 0;
};

/// The KV caches of all layers for one sequence, whatever their policy and element type. This is
/// all that the engine knows of the library.
class LayerCaches {
 public:
  virtual ~LayerCaches() = default;
  /// Attention of the new tokens over the layer's cache and themselves, then the policy's work:
  /// after every `compress_every` tokens, 0 for once at the end, kNever for not at all.
  virtual void extend(Index layer, const LayerRows& rows, Index compress_every) = 0;
  virtual CacheTotals totals() const = 0;
  /// Of the time spent in extend(), the policy's part; 0 where it runs on a device.
  virtual double policy_seconds() const { return 0; }
};

/// `--set name=value`.
struct Setting {
  std::string name, value;
};

struct CacheRequest {
  std::string policy = "full";
  std::vector<Setting> settings = {};
  std::optional<Index> budget = {};  ///< entries per KV head
  std::string kv_type = "f32";       ///< how keys and values are stored: f32, f16, bf16 or int8
  CacheShape shape = {};
  Team* team = &Team::of_one();  ///< shares the heads of a layer, on the CPU; borrowed
  std::string device = "cpu";    ///< where the caches are and attend: cpu or cuda
  Index tokens = 0;              ///< of the sequence, at most: what a device has room for
};

/// Throws std::invalid_argument, one line naming what is wrong and what would be right;
/// std::runtime_error where there is no such device.
std::unique_ptr<LayerCaches> make_caches(const CacheRequest& request);

/// Bytes that caches of this shape and element type hold after `tokens` tokens if nothing is
/// evicted.
Index full_cache_bytes(const CacheRequest& request, Index tokens);

struct ParameterInfo {
  std::string name, values, default_value, meaning;
};

struct PolicyInfo {
  std::string name;
  std::string keeps;          ///< one line
  bool needs_budget;          ///< false for those that keep everything or go by a threshold
  bool only_after_prompts;    ///< evicts at the end of a prompt, never while decoding
  std::string needs_setting;  ///< without a default: it cannot run before this is set; else empty
  std::vector<ParameterInfo> parameters;
};

/// Every policy, in the order in which they are shown.
const std::vector<PolicyInfo>& policy_catalogue();
/// Parameters that every policy takes besides its own.
const std::vector<ParameterInfo>& common_parameters();
/// Throws std::invalid_argument naming the policies there are.
const PolicyInfo& find_policy(std::string_view name);
/// Whether `policy` has a parameter of that name, common ones included.
bool has_parameter(const PolicyInfo& policy, std::string_view name);

}  // namespace llama
