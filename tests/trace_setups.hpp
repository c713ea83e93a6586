// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reference/h2o.hpp"
#include "reference/keepkv.hpp"
#include "reference/kvzap.hpp"
#include "reference/morphkv.hpp"
#include "reference/snapkv.hpp"
#include "reference/streaming_llm.hpp"
#include "reference/tova.hpp"
#include "reference/weightedkv.hpp"
#include "reference/zsmerge.hpp"
#include "tersekv/tersekv.hpp"
#include "trace.hpp"

/// Every policy for random traces, with the reference that must do the same.
namespace trace {

inline Setup<tersekv::Full> full() {
  return {.policy = tersekv::Full{},
          .reference = [](Index) { return std::make_shared<reference::Full>(); },
          .evicts = false};
}

inline Setup<tersekv::StreamingLLM> streaming_llm(Index sinks) {
  return {tersekv::make_streaming_llm({.sinks = sinks}), sinks + 1, [=](Index budget) {
            return std::make_shared<reference::StreamingLLM>(
                reference::StreamingLLM::Options{.budget = budget, .sinks = sinks});
          }};
}

inline Setup<tersekv::H2O> h2o() {
  return {tersekv::make_h2o(), 1, [](Index budget) {
            return std::make_shared<reference::H2O>(reference::H2O::Options{.budget = budget});
          }};
}

inline Setup<tersekv::TOVA> tova() {
  return {tersekv::make_tova(), 1, [](Index budget) {
            return std::make_shared<reference::TOVA>(reference::TOVA::Options{.budget = budget});
          }};
}

inline Setup<tersekv::SnapKV> snapkv(Index window) {
  return {.policy = tersekv::make_snapkv({.window = window, .kernel = 5}),
          .smallest_budget = window,
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::SnapKV>(
                    reference::SnapKV::Options{.budget = budget, .window = window, .kernel = 5});
              },
          .ties = false};  // pooling adds equal numbers in different orders
}

inline Setup<tersekv::MorphKV> morphkv(tersekv::Fusion fusion, Index recent, Index interval,
                                       Index uncompressed_layers = 0) {
  return {tersekv::make_morphkv({.recent = recent,
                                 .fusion = fusion,
                                 .interval = interval,
                                 .uncompressed_layers = uncompressed_layers}),
          recent, [=](Index budget) {
            return std::make_shared<reference::MorphKV>(reference::MorphKV::Options{
                .budget = budget,
                .recent = recent,
                .fusion = fusion == tersekv::Fusion::sum ? reference::Fusion::sum
                                                         : reference::Fusion::max,
                .interval = interval,
                .layer = kLayer,
                .uncompressed_layers = uncompressed_layers});
          }};
}

inline Setup<tersekv::KVzap> kvzap(Index window) {
  return {tersekv::make_kvzap({.threshold = 0.25f, .window = window}), 1, [=](Index) {
            return std::make_shared<reference::KVzap>(
                reference::KVzap::Options{.threshold = 0.25, .window = window});
          }};
}

inline Setup<tersekv::ZSMerge> zsmerge(Index proximity, Index residual, float decay, float alpha,
                                       Index window) {
  return {.policy = tersekv::make_zsmerge({.proximity = proximity,
                                           .residual = residual,
                                           .decay = decay,
                                           .alpha = alpha,
                                           .window = window}),
          .smallest_budget = 2 + std::max<Index>(proximity, 1) + std::max<Index>(residual, 1),
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::ZSMerge>(
                    reference::ZSMerge::Options{.budget = budget,
                                                .proximity = proximity,
                                                .residual = residual,
                                                .decay = static_cast<double>(decay),
                                                .alpha = static_cast<double>(alpha),
                                                .window = window});
              },
          .merges = true};
}

inline Setup<tersekv::WeightedKV> weightedkv(Index sinks) {
  return {.policy = tersekv::make_weightedkv({.sinks = sinks}),
          .smallest_budget = 6,
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::WeightedKV>(
                    reference::WeightedKV::Options{.budget = budget, .sinks = sinks});
              },
          .merges = true};
}

inline reference::KeyRule same(tersekv::KeyRule rule) {
  switch (rule) {
    case tersekv::KeyRule::scale:
      return reference::KeyRule::scale;
    case tersekv::KeyRule::along_query:
      return reference::KeyRule::along_query;
    default:
      return reference::KeyRule::mean;
  }
}

template <class Policy>
Setup<Policy> keepkv(const Policy& policy, const tersekv::KeepKVOptions& options,
                     reference::KeepKVSelector selector) {
  return {.policy = policy,
          .smallest_budget = options.sinks + 2 + std::max<Index>(options.recent, options.sinks + 2),
          .reference =
              [=](Index budget) {
                return std::make_shared<reference::KeepKV>(
                    reference::KeepKV::Options{.budget = budget,
                                               .recent = options.recent,
                                               .sinks = options.sinks,
                                               .decay = static_cast<double>(options.decay),
                                               .window = options.window,
                                               .selector = selector,
                                               .key_rule = same(options.key_rule)});
              },
          .merges = true,
          .smallest_dim = 8,  // in few dimensions many cosines are equal up to rounding
          .ties = false,      // the mean of equal keys is equal only up to rounding
          .error_growth = options.key_rule == tersekv::KeyRule::scale ? 100.0 : 1.0};
}

}  // namespace trace
