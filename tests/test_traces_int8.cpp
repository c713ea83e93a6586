// SPDX-License-Identifier: Apache-2.0

// Every policy over keys and values of one byte, against its reference on random traces: an entry
// is rounded when it comes and when it is merged, and never else.

#include <catch2/generators/catch_generators.hpp>

#include "trace_setups.hpp"

using namespace trace;

namespace {

template <class Policy>
void agree(const Setup<Policy>& setup, std::uint64_t seed, double completed) {
  // Equal keys are stored equally, but their products round.
  Setup<Policy> without_ties = setup;
  without_ties.ties = false;
  // The looser, the sooner a merge is too near to call.
  const double share = setup.merges && reference::kLooseness > 1 ? 0.1 : 1;
  trace::agree<tersekv::Int8>(without_ties, 150, seed, completed * share, 5);
}

}  // namespace

TEST_CASE("int8: Full agrees with its reference") { agree(full(), 31000, 0.9); }

TEST_CASE("int8: StreamingLLM agrees with its reference") { agree(streaming_llm(4), 32000, 0.9); }

TEST_CASE("int8: H2O agrees with its reference") { agree(h2o(), 33000, 0.9); }

TEST_CASE("int8: TOVA agrees with its reference") { agree(tova(), 34000, 0.9); }

TEST_CASE("int8: SnapKV agrees with its reference") { agree(snapkv(6), 35000, 0.9); }

TEST_CASE("int8: MorphKV agrees with its reference") {
  agree(morphkv(tersekv::Fusion::sum, 5, 1), 36000, 0.9);
}

TEST_CASE("int8: KVzap agrees with its reference") { agree(kvzap(9), 37000, 0.9); }

TEST_CASE("int8: ZSMerge agrees with its reference") {
  agree(zsmerge(tersekv::kAuto, GENERATE(1, 3), 0.98f, 1.0f, 8), 38000, 0.7);
}

TEST_CASE("int8: WeightedKV agrees with its reference") { agree(weightedkv(4), 39000, 0.75); }

TEST_CASE("int8: KeepKV agrees with its reference") {
  const tersekv::KeepKVOptions options{
      .key_rule = GENERATE(tersekv::KeyRule::mean, tersekv::KeyRule::along_query)};
  agree(keepkv(tersekv::make_keepkv(options), options, reference::KeepKVSelector::victim), 40000,
        0.6);
}

TEST_CASE("int8: KeepKV with the pair selector agrees with its reference") {
  const tersekv::KeepKVOptions options{};
  agree(keepkv(tersekv::make_keepkv_pair(options), options, reference::KeepKVSelector::pair), 41000,
        0.6);
}
