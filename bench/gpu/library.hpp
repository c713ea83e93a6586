// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>

#include "../common/c_calls.hpp"
#include "api.h"
#include "attention_set.hpp"
#include "policy_set.hpp"
#include "tersekv/policies/full.hpp"
#include "tersekv/policies/h2o.hpp"
#include "tersekv/policies/keepkv.hpp"
#include "tersekv/policies/kvzap.hpp"
#include "tersekv/policies/morphkv.hpp"
#include "tersekv/policies/snapkv.hpp"
#include "tersekv/policies/streaming_llm.hpp"
#include "tersekv/policies/tova.hpp"
#include "tersekv/policies/weightedkv.hpp"
#include "tersekv/policies/zsmerge.hpp"

// The C functions over one device. Who includes this has defined `tersekv_bench::Device`, and does
// so in one file of a library: a GPU's, or the host's.

namespace tersekv_bench {

using AttentionSetHandle = AnyAttentionSet<Device>;
using PolicySetHandle = AnyPolicySet<Device>;

template <class Stream>
Stream stream_as(void* stream) {
  if constexpr (std::is_pointer_v<Stream>) {
    return static_cast<Stream>(stream);
  } else {
    return Stream{};  // the host has but one
  }
}
inline Device::Stream stream_of(void* stream) { return stream_as<Device::Stream>(stream); }
inline AttentionSetHandle& attention_set(void* set) {
  if (set == nullptr) throw std::invalid_argument("set: null");
  return *static_cast<AttentionSetHandle*>(set);
}
inline PolicySetHandle& policy_set(void* set) {
  if (set == nullptr) throw std::invalid_argument("set: null");
  return *static_cast<PolicySetHandle*>(set);
}

using PolicyMaker = std::unique_ptr<PolicySetHandle> (*)(const PolicyShape&, const std::string&,
                                                         Device::Stream);
inline const std::map<std::string, PolicyMaker>& policy_makers() {
  static const std::map<std::string, PolicyMaker> makers = {
      {"full", make_policy_set<Device, tersekv::Full>},
      {"h2o", make_policy_set<Device, tersekv::H2O>},
      {"keepkv", make_policy_set<Device, tersekv::KeepKV>},
      {"kvzap", make_policy_set<Device, tersekv::KVzap>},
      {"morphkv", make_policy_set<Device, tersekv::MorphKV>},
      {"snapkv", make_policy_set<Device, tersekv::SnapKV>},
      {"streaming_llm", make_policy_set<Device, tersekv::StreamingLLM>},
      {"tova", make_policy_set<Device, tersekv::TOVA>},
      {"weightedkv", make_policy_set<Device, tersekv::WeightedKV>},
      {"zsmerge", make_policy_set<Device, tersekv::ZSMerge>},
  };
  return makers;
}

}  // namespace tersekv_bench

extern "C" {

const char* tersekv_bench_error(void) { return tersekv_bench::last_error().c_str(); }

int tersekv_bench_spin(int64_t turns, void* stream) {
  using namespace tersekv_bench;
  return status_of([&] {
    Device::launch<SpinBody>(tersekv::cuda::Grid{1}, 1, nullptr, stream_of(stream),
                             SpinBody::Args{turns, nullptr});
  });
}

void* tersekv_bench_attention_create(const char* dtype, int64_t copies, int64_t sequences,
                                     int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                                     const int64_t* lengths, uint64_t seed, void* stream) {
  using namespace tersekv_bench;
  return guarded<void*>(nullptr, [&]() -> void* {
    AttentionShape shape{copies, sequences, q_heads, kv_heads, head_dim, {}};
    shape.lengths.assign(lengths, lengths + sequences * kv_heads);
    const std::string type = dtype;
    std::unique_ptr<AttentionSetHandle> set;
    if (type == "half") {
      set = std::make_unique<AttentionSet<Device, tersekv::Half>>(shape, seed, stream_of(stream));
    } else if (type == "bfloat16") {
      set =
          std::make_unique<AttentionSet<Device, tersekv::BFloat16>>(shape, seed, stream_of(stream));
    } else {
      throw std::invalid_argument("dtype: expected half or bfloat16, got " + type);
    }
    return set.release();
  });
}
void tersekv_bench_attention_destroy(void* set) {
  delete static_cast<tersekv_bench::AttentionSetHandle*>(set);
}
int tersekv_bench_attention_run(void* set, int64_t copy, const void* q, void* out, int mode,
                                void* stream) {
  using namespace tersekv_bench;
  return status_of([&] { attention_set(set).run(copy, q, out, mode, stream_of(stream)); });
}
int tersekv_bench_attention_probe(void* set, int64_t copy, int64_t blocks_per_multiprocessor,
                                  void* stream) {
  using namespace tersekv_bench;
  return status_of(
      [&] { attention_set(set).probe(copy, blocks_per_multiprocessor, stream_of(stream)); });
}
int64_t tersekv_bench_attention_probe_sum(void* set, int64_t copy, void* stream) {
  using namespace tersekv_bench;
  return guarded<int64_t>(
      -1, [&]() -> int64_t { return attention_set(set).probe_sum(copy, stream_of(stream)); });
}
int tersekv_bench_attention_export(void* set, int64_t copy, void* k, void* v, float* weights,
                                   int64_t padded, void* stream) {
  using namespace tersekv_bench;
  return status_of(
      [&] { attention_set(set).export_to(copy, k, v, weights, padded, stream_of(stream)); });
}
int tersekv_bench_attention_scores(void* set, int what, int64_t head, int64_t member, float* to,
                                   int64_t count, void* stream) {
  using namespace tersekv_bench;
  return status_of(
      [&] { attention_set(set).scores(what, head, member, to, count, stream_of(stream)); });
}
int64_t tersekv_bench_attention_bytes(void* set, int what) {
  using namespace tersekv_bench;
  return guarded<int64_t>(-1, [&] { return attention_set(set).bytes(what); });
}

void* tersekv_bench_policy_create(const char* policy, const char* dtype, int64_t copies,
                                  int64_t sequences, int64_t q_heads, int64_t kv_heads,
                                  int64_t head_dim, int64_t budget, int64_t room, void* stream) {
  using namespace tersekv_bench;
  return guarded<void*>(nullptr, [&]() -> void* {
    const auto maker = policy_makers().find(policy);
    if (maker == policy_makers().end()) {
      throw std::invalid_argument(std::string("policy: expected one of ") +
                                  tersekv_bench_policies() + ", got " + policy);
    }
    const PolicyShape shape{copies, sequences, q_heads, kv_heads, head_dim, budget, room};
    return maker->second(shape, dtype, stream_of(stream)).release();
  });
}
void tersekv_bench_policy_destroy(void* set) {
  delete static_cast<tersekv_bench::PolicySetHandle*>(set);
}
int tersekv_bench_policy_fill(void* set, int64_t tokens, uint64_t seed, void* stream) {
  using namespace tersekv_bench;
  return status_of([&] { policy_set(set).fill(tokens, seed, stream_of(stream)); });
}
int tersekv_bench_policy_refresh(void* set, uint64_t seed, void* stream) {
  using namespace tersekv_bench;
  return status_of([&] { policy_set(set).refresh(seed, stream_of(stream)); });
}
int tersekv_bench_policy_attend(void* set, int64_t copy, void* stream) {
  using namespace tersekv_bench;
  return status_of([&] { policy_set(set).attend(copy, stream_of(stream)); });
}
int tersekv_bench_policy_steps(void* set, int64_t first, int64_t count, void* stream) {
  using namespace tersekv_bench;
  return status_of([&] { policy_set(set).steps(first, count, stream_of(stream)); });
}
int tersekv_bench_policy_steps_apart(void* set, int64_t first, int64_t count, void* stream,
                                     void* policies) {
  using namespace tersekv_bench;
  return status_of(
      [&] { policy_set(set).steps_apart(first, count, stream_of(stream), stream_of(policies)); });
}
int tersekv_bench_policy_synchronize(void* set, void* stream) {
  using namespace tersekv_bench;
  return status_of([&] { policy_set(set).synchronize(stream_of(stream)); });
}
int64_t tersekv_bench_policy_length(void* set, int64_t copy, int64_t sequence, int64_t kv_head) {
  using namespace tersekv_bench;
  return guarded<int64_t>(-1, [&] { return policy_set(set).length(copy, sequence, kv_head); });
}
int64_t tersekv_bench_policy_bytes(void* set, int what) {
  using namespace tersekv_bench;
  return guarded<int64_t>(-1, [&] { return policy_set(set).bytes(what); });
}
const char* tersekv_bench_policies(void) {
  static const std::string names = [] {
    std::string text;
    for (const auto& [name, maker] : tersekv_bench::policy_makers()) {
      text += (text.empty() ? "" : " ") + name;
    }
    return text;
  }();
  return names.c_str();
}

}  // extern "C"
