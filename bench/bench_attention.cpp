// SPDX-License-Identifier: Apache-2.0
// Decode attention: one query token against a cache. Between start and stop: `KVCache::attend` of
// one layer, that is reading all of K and V, softmax, and writing `out`; nothing is appended,
// observed or evicted. The bytes counted are those of K and V. The thread's CPU time.
#include "subject.hpp"

namespace tersekv::bench {
namespace {

template <class LayersType>
class Attention {
 public:
  explicit Attention(LayersType& layers)
      : layers_(layers), tokens_(layers.at().heads), out_(tokens_.q_size()) {
    tokens_.draw(layers.at().context, 1);
  }
  /// One query through all layers; a sample per layer. Returns their sum.
  double round(Samples& samples) {
    const double before = samples.total();
    for (auto& cache : layers_.caches()) {
      samples.add(seconds_of([&] { cache.attend(0, tokens_.q(), out()); }, cpu));
    }
    return samples.total() - before;
  }

 private:
  TokenView<float> out() {
    return nhd_view(out_.data(), 1, tokens_.q().heads, tokens_.q().head_dim);
  }
  LayersType& layers_;
  Tokens tokens_;
  std::vector<float> out_;
};

template <class PolicyType, class T>
void run(benchmark::State& state, const std::string& name, const Case& c) {
  auto& full = full_at<T>(c);
  auto& layers = [&]() -> Layers<PolicyType, T>& {
    if constexpr (std::is_same_v<PolicyType, Full>) {
      return full;
    } else {
      return subject_slot().get<Layers<PolicyType, T>>(name, [&] {
        return new Layers<PolicyType, T>(c, PolicyType{}, std::min(c.context, 2 * c.budget));
      });
    }
  }();
  full.refresh();  // others' benchmarks may have appended to it
  if (!layers.right() || !full.right()) return refuse(state, "attention is wrong");
  Attention subject(layers), baseline(full);

  const double bandwidth = layers.bandwidth();
  Samples samples, full_samples;
  take_turns(state, subject, baseline, samples, full_samples);
  report(state, samples.median(), static_cast<double>(layers.layer_bytes()), bandwidth,
         full_samples.median());
}

template <class PolicyType, class T>
void add_case(const std::string& policy, Case c) {
  c.bytes_of_element = sizeof(T);
  const std::string name = "attention/" + policy + "/" + c.name(Codec<T>::name);
  add(name, [name, c](benchmark::State& state) { run<PolicyType, T>(state, name, c); });
}

const bool added = [] {
  for (const Heads& heads : kHeads) {
    for_each_element([&]<class T>() {
      for (const Index context : kContexts) {
        add_case<Full, T>("full", {heads, context});
        for (const Index percent : kBudgetPercents) {
          add_case<ZSMerge, T>("zsmerge", {heads, context, context * percent / 100});
        }
      }
    });
  }
  return true;
}();

}  // namespace
}  // namespace tersekv::bench
