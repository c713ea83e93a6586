// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tersekv/checks.hpp"
#include "tersekv/cuda/body/heads.hpp"
#include "tersekv/cuda/plan.hpp"

namespace tersekv::cuda {

/// What a cache on a device needs to know in advance, as its steps allocate nothing.
struct DeviceOptions {
  /// Tokens between two compressions, at most: a prompt, or the chunks it comes in.
  Index max_chunk = 512;
  /// Entries of a head, at most; kAuto: what the policy leaves, and max_chunk. Must be given where
  /// the policy sets no limit (Full, SnapKV, KVzap): there the host counts every token until
  /// `synchronize` tells it what was evicted.
  Index max_length = kAuto;
  Tuning tuning = {};
};

/// What follows from a configuration, checked: every function throws std::invalid_argument.
template <class PolicyType, class KeyCodec, class ValueCodec, class Dims>
struct CacheSetup {
  static Shape shape(const CacheConfig& config, const PolicyType& policy) {
    detail::check_config(config);
    detail::require(config.page_size >= kLeastPageSize, "page_size, on a device", "at least 64",
                    config.page_size);
    if (!Dims::contains(config.head_dim)) {
      detail::refuse({"head_dim, on a device"}, {Dims::list()}, {config.head_dim});
    }
    const float scale =
        config.scale != 0.0f ? config.scale : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
    const Shape shape{config.num_q_heads / config.num_kv_heads, config.head_dim, config.layer,
                      scale};
    detail::require(config.num_sequences * config.num_kv_heads <= kMostHeads,
                    "num_sequences * num_kv_heads, on a device", "at most 65535",
                    config.num_sequences * config.num_kv_heads);
    detail::require(shape.group_size <= kMostGroup, "query heads of a group, on a device",
                    "1 to 16", shape.group_size);
    if (PolicyType::needs_budget && config.budget.size() == 0) {
      detail::refuse({"budget"}, {"entries per KV head (kUnlimited to keep all)"}, {"none"});
    }
    for (Index h = 0; h < config.num_kv_heads; ++h) policy.validate(shape, config.budget.of(h));
    return shape;
  }

  static PageLayout layout(const CacheConfig& config, const PolicyType& policy,
                           const Shape& shape) {
    return PageLayout::of<KeyCodec, ValueCodec>(config.page_size, config.head_dim,
                                                PolicyType::uses_weights, policy.statistics(shape),
                                                policy.registers(shape));
  }

  /// Of all heads, sequence by sequence.
  static std::vector<Index> budgets(const CacheConfig& config) {
    std::vector<Index> each;
    for (Index h = 0; h < config.num_sequences * config.num_kv_heads; ++h) {
      each.push_back(config.budget.of(h % config.num_kv_heads));
    }
    return each;
  }

  /// Entries of a head, at most.
  static Index most_entries(const CacheConfig& config, const PolicyType& policy, const Shape& shape,
                            const DeviceOptions& options) {
    detail::require_count("max_chunk", options.max_chunk, 1);
    detail::require_count("max_length", options.max_length, 1, true);
    if (options.max_length != kAuto) return options.max_length;
    Index most = 0;
    for (Index h = 0; h < config.num_kv_heads; ++h) {
      most = std::max(most, policy.max_length(shape, config.budget.of(h), 1));
    }
    if (most > kMostTokens) {
      detail::refuse({"max_length"}, {"a number, as this policy and budget set no limit"},
                     {"kAuto"});
    }
    return most + options.max_chunk;
  }

  static Tuning tuning(const Tuning& given) {
    detail::require(given.splits >= 0, "splits", "0 or more", given.splits);
    detail::require(given.observed_rows >= 1, "observed_rows", "at least 1", given.observed_rows);
    const int team = given.team_blocks;
    detail::require(team >= 0 && team <= DeviceScratch::kMostTeamBlocks && (team & (team - 1)) == 0,
                    "team_blocks", "0, 1, 2, 4 or 8", team);
    return given;
  }
};

}  // namespace tersekv::cuda
