// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cuda/small_cache.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"

// Appends and steps by several blocks for a head do what those by one block do, bit by bit, which
// are held against the CPU by the traces.

using namespace tersekv;
using on_device::TokensOf;
using support::Random;

namespace {

constexpr Index kDim = 16, kHeads = 2, kSequences = 2;

template <class Codec, class Policy>
void check(const Policy& policy, Index group, int splits, Index budget = 70) {
  CAPTURE(group, splits);
  using Cache = on_device::KVCache<Policy, Codec, Codec, tersekv::cuda::HeadDims<kDim>>;
  const CacheConfig config{.num_sequences = kSequences,
                           .num_q_heads = kHeads * group,
                           .num_kv_heads = kHeads,
                           .head_dim = kDim,
                           .budget = budget};
  tersekv::cuda::DeviceOptions options{
      .max_chunk = 150, .max_length = 300, .tuning = {.splits = splits}};
  Cache one(config, policy, options);
  options.tuning.team_blocks = 2;
  Cache two(config, policy, options);
  Random random(7);
  const auto extend = [&](tersekv::cuda::Sequences sequences, Index rows) {
    const TokensOf<Codec> tokens(random, rows, kHeads, group, kDim);
    one.extend(tokens.batch(sequences));
    const auto out = tokens.out();
    two.extend(tokens.batch(sequences));
    REQUIRE(tokens.out() == out);
  };
  const Index more = support::kThreadSanitizer ? 35 : 50;  // beyond the budget either way
  for (Index s = 0; s < kSequences; ++s) extend(s, 40 + more * s);
  for (int step = 0; step < 3; ++step) extend({0, kSequences}, kSequences);
  on_device::same_bits(one, two);
}

}  // namespace

TEST_CASE("device: steps by one block and by two are the same", "[small]") {
  on_device::require_device();
  check<Half>(H2O{}, 1, 3);
  check<Half>(ZSMerge{}, 2, 1);
  check<BFloat16>(MorphKV{}, 8, 3);
  if (support::kThreadSanitizer) return;  // nothing that blocks share is new below
  check<Half>(StreamingLLM{}, 3, 3);
  check<BFloat16>(WeightedKV{}, 4, 1);
}

TEST_CASE("device: steps by one block and by two give the same victims' pages back") {
  on_device::require_device();
  check<BFloat16>(make_kvzap({.threshold = 0.3f, .window = 8}), 4, 2, kUnlimited);
}
