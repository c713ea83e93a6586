// SPDX-License-Identifier: Apache-2.0
// A policy that lacks one of the parts is refused, and the compiler names the missing one.
// expect: KVCache: the first template argument must satisfy tersekv::CachePolicy
// expect: policy.compress(team, head)
#include <tersekv/tersekv.hpp>

struct Chosen {
  static constexpr tersekv::Observes observes = tersekv::Observes::nothing;
  static constexpr bool uses_weights = false;
  static constexpr bool needs_token_scores = false;
  static constexpr bool needs_budget = false;
  void validate(const tersekv::Shape&, tersekv::Index) const {}
  tersekv::Index statistics(const tersekv::Shape&) const { return 0; }
  tersekv::Index registers(const tersekv::Shape&) const { return 0; }
  float alpha() const { return 0; }
  tersekv::Index max_length(const tersekv::Shape&, tersekv::Index budget, tersekv::Index) const {
    return budget;
  }
  tersekv::Index observed_rows(tersekv::Index rows) const { return rows; }
  void append(auto&, const auto&, tersekv::Index, tersekv::Index, const float*) const {}
  void observe(auto&, const auto&, const tersekv::Observation&) const {}
#ifdef TERSEKV_FIXED
  void compress(auto&, const auto&) const {}
#endif
  float score(const auto&, tersekv::Index) const { return 0; }
};

tersekv::KVCache<Chosen>* cache = nullptr;

void use() { cache->clear(); }
