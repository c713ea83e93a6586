// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tersekv/kv_cache.hpp"

// Whole vectors are read and written: one that lies in two cache lines takes two accesses.

namespace {

/// Says where the memory lies that it is shown.
struct Watcher : tersekv::PolicyBase {
  static constexpr tersekv::Observes observes = tersekv::Observes::logits;
  std::vector<const void*>* seen = nullptr;
  template <class Team, class Head>
  void observe(Team&, const Head& head, const tersekv::Observation& row) const {
    for (const void* memory :
         {static_cast<const void*>(row.logits), static_cast<const void*>(row.query),
          static_cast<const void*>(head.scratch().floats),
          static_cast<const void*>(head.key_page(0)), static_cast<const void*>(head.value_page(0))})
      seen->push_back(memory);
  }
};

TEST_CASE("alignment: no vector of what attention and policies work in lies in two cache lines") {
  std::vector<const void*> seen;
  Watcher watcher;
  watcher.seen = &seen;
  tersekv::KVCache<Watcher> cache({.num_q_heads = 3, .num_kv_heads = 1, .head_dim = 5}, watcher);
  const std::vector<float> zeros(std::size_t{3 * 5 * 70});
  std::vector<float> out(zeros.size());
  for (const tersekv::Index tokens : {1, 7, 70}) {
    cache.extend<float>(tersekv::nhd_view(zeros.data(), tokens, 3, 5),
                        tersekv::nhd_view(zeros.data(), tokens, 1, 5),
                        tersekv::nhd_view(zeros.data(), tokens, 1, 5),
                        tersekv::nhd_view(out.data(), tokens, 3, 5));
  }
  CHECK(seen.size() == 5 * 78);
  for (const void* memory : seen) CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
}

}  // namespace
