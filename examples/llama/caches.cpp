// SPDX-License-Identifier: Apache-2.0
#include "caches.hpp"

#include <algorithm>
#include <stdexcept>

#include "layer_caches.hpp"

namespace llama {
namespace {

bool on_cuda(const CacheRequest& request) {
  if (request.device == "cpu" || request.device == "cuda") return request.device == "cuda";
  throw std::invalid_argument("device is '" + request.device + "', expected cpu or cuda");
}

}  // namespace

std::unique_ptr<LayerCaches> make_caches(const CacheRequest& request) {
  find_policy(request.policy);  // refuses names that there are not
  if (on_cuda(request)) return make_cuda_caches(request);
  return dispatch<MakeCaches>(request.kv_type,
                              {{"f32", make_caches_f32},
                               {"f16", make_caches_f16},
                               {"bf16", make_caches_bf16},
                               {"int8", make_caches_int8}},
                              request);
}

Index full_cache_bytes(const CacheRequest& request, Index tokens) {
  if (on_cuda(request)) return full_cuda_cache_bytes(request, tokens);
  return dispatch<CacheBytes>(request.kv_type,
                              {{"f32", full_cache_bytes_f32},
                               {"f16", full_cache_bytes_f16},
                               {"bf16", full_cache_bytes_bf16},
                               {"int8", full_cache_bytes_int8}},
                              request, tokens);
}

const std::vector<PolicyInfo>& policy_catalogue() {
  static const std::vector<PolicyInfo> catalogue = [] {
    std::vector<PolicyInfo> all;
    for_each_policy([&](const auto& entry) { all.push_back(entry.info); });
    return all;
  }();
  return catalogue;
}

const std::vector<ParameterInfo>& common_parameters() {
  static const std::vector<ParameterInfo> common = [] {
    std::vector<ParameterInfo> all;
    for (const auto& parameter : cache_parameters()) all.push_back(parameter.info());
    return all;
  }();
  return common;
}

const PolicyInfo& find_policy(std::string_view name) {
  const std::vector<PolicyInfo>& all = policy_catalogue();
  const auto found = std::ranges::find(all, name, &PolicyInfo::name);
  if (found != all.end()) return *found;
  std::string known;
  for (const PolicyInfo& policy : all) known += (known.empty() ? "" : ", ") + policy.name;
  throw std::invalid_argument("no policy '" + std::string(name) + "'; there are: " + known);
}

bool has_parameter(const PolicyInfo& policy, std::string_view name) {
  const auto has = [&](const std::vector<ParameterInfo>& parameters) {
    return std::ranges::find(parameters, name, &ParameterInfo::name) != parameters.end();
  };
  return has(policy.parameters) || has(common_parameters());
}

}  // namespace llama
