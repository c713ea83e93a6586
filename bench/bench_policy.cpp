// SPDX-License-Identifier: Apache-2.0
// A decode step of every policy, by the verbs: append, attend, observe, compress, for every layer
// in turn; each verb is timed by itself. Drawing the token lies outside. `policy_over_attend` is
// (observe + compress) / attend, the policy's own part.
//
// rows: `attend` writes the attention reduced over the group, and `observe` is handed that. Who
// observes logits (KeepKV) is handed logits that were worked out off the clock.
// queries: `observe` is given the query and works the attention out again from the keys, as for an
// engine whose kernel hides it: one more pass over K lies between its start and stop.
#include "subject.hpp"

namespace tersekv::bench {
namespace {

/// Samples of the four verbs, of all four, and of the policy's share, one per layer and token.
struct Verbs {
  Samples append, attend, observe, compress, all, policy_over_attend;
};

template <Handed handed, class PolicyType, class T>
class Step {
 public:
  explicit Step(Layers<PolicyType, T>& layers)
      : layers_(layers), token_(layers.at().heads), step_(layers.at().heads) {}

  /// One token through all layers. Returns the seconds of all verbs.
  double round(Verbs& verbs) {
    layers_.refresh_if_grown();
    const Index position = layers_.next_position();
    const double before = verbs.all.total();
    for (Index layer = 0; auto& cache : layers_.caches()) {
      token_.draw(position, 1, layer++);
      const VerbSeconds seconds = step_(cache, token_);
      verbs.append.add(seconds.append);
      verbs.attend.add(seconds.attend);
      verbs.observe.add(seconds.observe);
      verbs.compress.add(seconds.compress);
      verbs.all.add(seconds.all());
      verbs.policy_over_attend.add((seconds.observe + seconds.compress) / seconds.attend);
    }
    return verbs.all.total() - before;
  }

 private:
  Layers<PolicyType, T>& layers_;
  Tokens token_;
  DecodeStep<handed, KVCache<PolicyType, T>> step_;
};

template <Handed handed, class PolicyType, class T>
void run(benchmark::State& state, const std::string& name, const Case& c,
         const PolicyType& policy) {
  auto& full = full_at<T>(c);
  auto& layers = subject_slot().get<Layers<PolicyType, T>>(name, [&] {
    const Index tokens = c.budget == kUnlimited ? c.context : std::min(c.context, 2 * c.budget);
    return new Layers<PolicyType, T>(c, policy, tokens);
  });
  Step<handed, PolicyType, T> subject(layers);
  Step<Handed::rows, Full, T> baseline(full);
  // The layers as they are after a few steps must attend right, and be within their budget.
  Verbs warm, verbs, full_verbs;
  for (int i = 0; i < 3; ++i) subject.round(warm);
  if (!layers.right() || !full.right()) return refuse(state, "attention is wrong");
  const CacheConfig& config = layers.caches()[0].config();
  const Shape shape{c.heads.group, c.heads.dim, 0, 1.0f};
  if (layers.caches()[0].length(0, 0) > policy.max_length(shape, config.budget.of(0), 1)) {
    return refuse(state, "more entries than the budget");
  }

  const double bandwidth = layers.bandwidth();
  take_turns(state, subject, baseline, verbs, full_verbs);
  report(state, verbs.all.median(), static_cast<double>(layers.layer_bytes()), bandwidth,
         full_verbs.all.median());
  state.counters["append_us"] = verbs.append.median() * 1e6;
  state.counters["attend_us"] = verbs.attend.median() * 1e6;
  state.counters["observe_us"] = verbs.observe.median() * 1e6;
  state.counters["compress_us"] = verbs.compress.median() * 1e6;
  state.counters["policy_over_attend"] = verbs.policy_over_attend.median();
}

template <class T, class PolicyType>
void add_policy(const std::string& policy_name, Case c, const PolicyType& policy) {
  c.bytes_of_element = sizeof(T);
  const std::string tail = c.name(Codec<T>::name);
  const std::string rows = "policy/" + policy_name + "/rows/" + tail;
  add(rows, [rows, c, policy](benchmark::State& state) {
    run<Handed::rows, PolicyType, T>(state, rows, c, policy);
  });
  if constexpr (PolicyType::observes != Observes::nothing && std::is_same_v<T, float>) {
    if (c.context != kContexts[1] || c.heads.dim != kHeads[0].dim) return;  // once is enough
    const std::string queries = "policy/" + policy_name + "/queries/" + tail;
    add(queries, [queries, c, policy](benchmark::State& state) {
      run<Handed::queries, PolicyType, T>(state, queries, c, policy);
    });
  }
}

/// A threshold that keeps about `budget` of the tokens seen, given scores uniform in [0, 1).
KVzap kvzap_keeping(const Case& c) {
  const Index seen = std::min(c.context, 2 * c.budget);
  const Index window = std::min<Index>(128, c.budget / 2);
  const double share = static_cast<double>(c.budget - window) / static_cast<double>(seen - window);
  return make_kvzap({.threshold = static_cast<float>(1 - share), .window = window});
}

template <class T>
void add_policies(const Case& c) {
  add_policy<T>("full", c.full(), Full{});
  add_policy<T>("streaming_llm", c, make_streaming_llm());
  add_policy<T>("h2o", c, make_h2o());
  add_policy<T>("tova", c, make_tova());
  add_policy<T>("snapkv", c, make_snapkv());
  add_policy<T>("zsmerge", c, make_zsmerge());
  add_policy<T>("weightedkv", c, make_weightedkv());
  add_policy<T>("morphkv", c, make_morphkv());
  add_policy<T>("keepkv", c, make_keepkv());
  add_policy<T>("keepkv_pair", c, make_keepkv_pair());
  add_policy<T>("kvzap", c, kvzap_keeping(c));
}

const bool added = [] {
  const auto at = [](const Heads& heads, Index context, Index percent) {
    return Case{heads, context, context * percent / 100};
  };
  add_policies<float>(at(kHeads[0], kContexts[0], kBudgetPercents[1]));
  add_policies<float>(at(kHeads[0], kContexts[1], kBudgetPercents[1]));
  add_policies<float>(at(kHeads[0], kContexts[2], kBudgetPercents[0]));
  add_policies<float>(at(kHeads[1], kContexts[1], kBudgetPercents[1]));
  add_policies<BFloat16>(at(kHeads[0], kContexts[1], kBudgetPercents[1]));
  for (const Index budget : {511, 512}) {  // a step works on one entry more: a page more, or none
    for (const Heads& heads : kHeads) {
      add_policy<BFloat16>("h2o", {heads, kContexts[1], budget}, make_h2o());
    }
  }
  return true;
}();

}  // namespace
}  // namespace tersekv::bench
