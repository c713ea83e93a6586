// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../decode_step.hpp"
#include "threads.hpp"

namespace tersekv::peers {

struct SetShape {
  Index copies, q_heads, kv_heads, head_dim, budget, tokens;
  int threads;
  bench::Heads heads() const { return {kv_heads, q_heads / kv_heads, head_dim}; }
  CacheConfig config() const {
    return {.num_q_heads = q_heads,
            .num_kv_heads = kv_heads,
            .head_dim = head_dim,
            .budget = budget > 0 ? budget : kUnlimited};
  }
};

/// Keeps everything and does nothing, but its entries have weights and it asks for attention: the
/// kernel with all that a policy may want of it.
struct Weighted : PolicyBase {
  static constexpr Observes observes = Observes::attention;
  static constexpr bool uses_weights = true;
  float alpha() const { return 1.0f; }
  template <class Team, class Head>
  void observe(Team&, const Head&, const Observation&) const {}
};

/// What the C functions work on, whatever the policy and the storage.
class AnySet {
 public:
  virtual ~AnySet() = default;
  virtual std::unique_ptr<AnySet> clone() const = 0;
  virtual void weigh(std::uint64_t seed) = 0;
  virtual Index length(Index kv_head) const = 0;
  virtual MemoryUsage memory() const = 0;
  virtual void query(float* q) = 0;
  virtual void export_to(Index copy, Index kv_head, float* k, float* v, float* weights) const = 0;
  virtual double difference(Index copy) = 0;
  virtual double attend(Index calls, bool with_rows, float* out, float* rows) = 0;
  virtual double key_products(Index calls, float* products) = 0;
  virtual double prompt(Index queries, Index calls) = 0;
  virtual double prompt_difference() = 0;
  virtual void steps(Index calls, double* seconds) = 0;
  virtual void extends(Index calls, double* seconds) = 0;
  virtual void pairs(Index calls, double* seconds) = 0;
  virtual void stream(Index calls, double* seconds) = 0;
};

using Maker = std::unique_ptr<AnySet> (*)(const SetShape&, const std::string& element);
/// The policies by name. Each file in policies/ adds its own, so that a library may have fewer.
std::map<std::string, Maker>& makers();
inline bool add_policy(const std::string& name, Maker maker) {
  return makers().emplace(name, maker).second;
}

}  // namespace tersekv::peers
