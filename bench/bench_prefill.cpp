// SPDX-License-Identifier: Apache-2.0
// Prefill: between start and stop, `KVCache::extend` takes a prompt of `context` tokens, chunk by
// chunk, into one layer's empty cache: append, causal attention of every token, observation, and
// compression once per chunk (compress_every:0) or after every token (1). Drawing the prompt and
// emptying the cache lie outside. The bytes counted are the K and V of the entries each token
// attends to, as if every token read them anew; so a kernel that reads a page once for many tokens
// may pass a fraction of 1. One layer only. The thread's CPU time.
#include "subject.hpp"

namespace tersekv::bench {
namespace {

struct Prompt {
  Case c;
  Index chunk;
  Index compress_every;
};

template <class PolicyType, class T>
class Prefill {
 public:
  Prefill(const Prompt& prompt, const Case& c, const PolicyType& policy)
      : prompt_(prompt),
        cache_(c.config(), policy),
        tokens_(c.heads, c.context),
        out_(tokens_.q_size()) {
    tokens_.draw(0, c.context);
  }

  /// One prompt; returns its seconds.
  double round(Samples& samples) {
    cache_.clear();
    samples.add(seconds_of(
        [&] {
          for (Index first = 0; first < prompt_.c.context; first += prompt_.chunk) {
            const Index count = std::min(prompt_.chunk, prompt_.c.context - first);
            cache_.extend(tokens_.q().rows(first, count), tokens_.k().rows(first, count),
                          tokens_.v().rows(first, count), out().rows(first, count),
                          {.compress_every = prompt_.compress_every});
          }
        },
        cpu));
    return samples.last();
  }

  /// Bytes of K and V that all tokens of the prompt attend to.
  double bytes() const {
    const Index limit = PolicyType::needs_budget ? prompt_.c.budget : prompt_.c.context;
    const Index step = prompt_.compress_every == 0 ? prompt_.chunk : prompt_.compress_every;
    double entries = 0;
    Index length = 0;
    for (Index t = 0; t < prompt_.c.context; ++t) {
      if (t % step == 0) length = std::min(length, limit);
      entries += static_cast<double>(++length);
    }
    return entries * static_cast<double>(prompt_.c.entry_bytes());
  }

  /// The same prompt by the verbs, step for step; the last attention before each compression also
  /// against the plain double loop.
  bool right() {
    Samples unused;
    round(unused);
    const std::vector<float> extended = out_;
    cache_.clear();
    const Index step = prompt_.compress_every == 0 ? prompt_.chunk : prompt_.compress_every;
    for (Index first = 0; first < prompt_.c.context; first += step) {
      const Index count = std::min(step, prompt_.c.context - first);
      const TokenView<const float> q = tokens_.q().rows(first, count);
      cache_.append(0, tokens_.k().rows(first, count), tokens_.v().rows(first, count));
      cache_.attend(0, q, out().rows(first, count));
      const bool sampled = first % 64 == 0 || first + step >= prompt_.c.context;
      if (sampled && !(attention_error(cache_, q, out().rows(first, count)) < kTolerance)) {
        return false;
      }
      if constexpr (PolicyType::observes != Observes::nothing) cache_.observe(0, q);
      cache_.compress(0);
    }
    return extended == out_;
  }

 private:
  TokenView<float> out() {
    return nhd_view(out_.data(), prompt_.c.context, tokens_.q().heads, prompt_.c.heads.dim);
  }
  Prompt prompt_;
  KVCache<PolicyType, T> cache_;
  Tokens tokens_;
  std::vector<float> out_;
};

template <class PolicyType, class T>
void run(benchmark::State& state, const std::string& name, const Prompt& prompt) {
  // Checked on a prompt of 300 tokens, with the same heads, chunks and types.
  Prompt small = prompt;
  small.c.context = 300;
  if (small.c.budget != kUnlimited) small.c.budget = 64;
  small.chunk = std::min<Index>(prompt.chunk, 128);
  if (!Prefill<PolicyType, T>(small, small.c, {}).right()) {
    return refuse(state, "prefill is wrong");
  }

  Prefill<Full, T> baseline(prompt, prompt.c.full(), {});
  auto& subject = subject_slot().get<Prefill<PolicyType, T>>(
      name, [&] { return new Prefill<PolicyType, T>(prompt, prompt.c, {}); });
  const Index entries = std::min(prompt.c.context, prompt.c.budget);
  const double bandwidth = read_bandwidth(entries * prompt.c.entry_bytes());
  Samples samples, full_samples;
  take_turns(state, subject, baseline, samples, full_samples);
  report(state, samples.median(), subject.bytes(), bandwidth, full_samples.median());
  state.counters["us_per_token"] = samples.median() * 1e6 / static_cast<double>(prompt.c.context);
}

template <class T, class PolicyType>
void add_case(const std::string& policy, Prompt prompt) {
  prompt.c.bytes_of_element = sizeof(T);
  const std::string name = "prefill/" + policy + "/" + prompt.c.name(Codec<T>::name) +
                           "/chunk:" + std::to_string(prompt.chunk) +
                           "/compress_every:" + std::to_string(prompt.compress_every);
  add(name, [name, prompt](benchmark::State& state) { run<PolicyType, T>(state, name, prompt); });
}

template <class T>
void add_prompts(const Heads& heads, Index context) {
  for (const Index chunk : kChunks) {
    for (const Index every : {Index{0}, Index{1}}) {
      const Index budget = context * kBudgetPercents[1] / 100;
      add_case<T, Full>("full", {{heads, context}, chunk, every});
      add_case<T, ZSMerge>("zsmerge", {{heads, context, budget}, chunk, every});
    }
  }
}

const bool added = [] {
  add_prompts<float>(kHeads[0], kContexts[0]);
  add_prompts<float>(kHeads[0], kContexts[1]);
  add_prompts<float>(kHeads[1], kContexts[0]);
  add_prompts<BFloat16>(kHeads[0], kContexts[0]);
  return true;
}();

}  // namespace
}  // namespace tersekv::bench
