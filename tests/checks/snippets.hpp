// SPDX-License-Identifier: Apache-2.0
// What README's snippets take for granted: an engine with one layer's rows at hand.
#pragma once

#include <memory_resource>
#include <new>
#include <span>
#include <tersekv/tersekv.hpp>
#include <vector>

struct Host {
  tersekv::CacheConfig config;
  tersekv::KVCache<tersekv::ZSMerge> cache{config}, prefixes{config};
  float *q_data = nullptr, *k_data = nullptr, *v_data = nullptr, *out_data = nullptr;
  tersekv::Index tokens = 0, q_heads = 0, kv_heads = 0, dim = 0;
  tersekv::TokenView<const float> q, k, v;
  tersekv::TokenView<float> out;
  std::pmr::memory_resource* my_resource = nullptr;
  std::vector<tersekv::KVCache<tersekv::ZSMerge>> layers;
};

// Names the parts of a Host as the snippets do.
#define TERSEKV_SNIPPET_NAMES(host)                                                          \
  [[maybe_unused]] auto& [config, cache, prefixes, q_data, k_data, v_data, out_data, tokens, \
                          q_heads, kv_heads, dim, q, k, v, out, my_resource, layers] = host;
