// SPDX-License-Identifier: Apache-2.0
// Append: between start and stop, `KVCache::append` of one token, or of a chunk, to one layer:
// checks of the input, pages, conversion, K and V into their columns, statistics to their initial
// values. Drawing the tokens and compressing afterwards lie outside. The bytes counted are those of
// K and V as they are stored. Wall-clock time. Called again and again, the verb finds its slot in a
// near cache; `append_us` in bench_policy.cpp is the same call within a decode step.
#include "subject.hpp"

namespace tersekv::bench {
namespace {

template <class PolicyType, class T>
class Append {
 public:
  Append(Layers<PolicyType, T>& layers, Index chunk)
      : layers_(layers), chunk_(chunk), tokens_(layers.at().heads, chunk) {}

  /// The same tokens to all layers; a sample per layer. Returns their sum.
  double round(Samples& samples) {
    layers_.refresh_if_grown();
    const double before = samples.total();
    draw();
    for (auto& cache : layers_.caches()) {
      samples.add(seconds_of([&] { append_tokens(cache, tokens_); }));
    }
    for (auto& cache : layers_.caches()) cache.compress(0);
    return samples.total() - before;
  }
  /// The last entries of a layer are the tokens just appended, in the storage's precision.
  bool right() {
    draw();
    auto& cache = layers_.caches().back();
    append_tokens(cache, tokens_);
    const Index h = layers_.at().heads.kv - 1;
    const std::vector<Entry> entries = cache.entries(0, h);
    bool same = true;
    for (Index t = 0; t < chunk_; ++t) {
      const Entry& entry = entries[entries.size() - static_cast<std::size_t>(chunk_ - t)];
      for (Index j = 0; j < layers_.at().heads.dim; ++j) {
        const auto d = static_cast<std::size_t>(j);
        same &= entry.key[d] == to_float(from_float<T>(tokens_.k()(t, h, j)));
        same &= entry.value[d] == to_float(from_float<T>(tokens_.v()(t, h, j)));
      }
    }
    layers_.refresh();
    return same;
  }

 private:
  void draw() { tokens_.draw(layers_.next_position(), chunk_); }
  Layers<PolicyType, T>& layers_;
  Index chunk_;
  Tokens tokens_;
};

template <class PolicyType, class T>
void run(benchmark::State& state, const std::string& name, const Case& c, Index chunk,
         const PolicyType& policy) {
  auto& full = full_at<T>(c);
  auto& layers = subject_slot().get<Layers<PolicyType, T>>(name, [&] {
    const Index tokens = c.budget == kUnlimited ? c.context : std::min(c.context, 2 * c.budget);
    return new Layers<PolicyType, T>(c, policy, tokens);
  });
  Append subject(layers, chunk);
  Append baseline(full, chunk);
  if (!subject.right() || !baseline.right()) return refuse(state, "the entries are wrong");
  const double bandwidth = layers.bandwidth();
  Samples samples, full_samples;
  take_turns(state, subject, baseline, samples, full_samples);
  report(state, samples.median(), static_cast<double>(chunk * c.entry_bytes()), bandwidth,
         full_samples.median());
  state.counters["ns_per_token"] = samples.median() * 1e9 / static_cast<double>(chunk);
}

template <class T, class PolicyType>
void add_case(const std::string& policy_name, Case c, const PolicyType& policy) {
  c.bytes_of_element = sizeof(T);
  for (const Index chunk : {Index{1}, kChunks[0]}) {
    const std::string name =
        "append/" + policy_name + "/" + c.name(Codec<T>::name) + "/chunk:" + std::to_string(chunk);
    add(name, [name, c, chunk, policy](benchmark::State& state) {
      run<PolicyType, T>(state, name, c, chunk, policy);
    });
  }
}

const bool added = [] {
  for (const Heads& heads : kHeads) {
    for_each_element([&]<class T>() {
      // Append does not depend on how much there is; this context serves the test as well.
      const Case c{heads, kContexts[0], kContexts[0] * kBudgetPercents[1] / 100};
      add_case<T>("full", c.full(), Full{});
      add_case<T>("zsmerge", c, ZSMerge{});
      add_case<T>("keepkv", c, KeepKV{});
    });
  }
  return true;
}();

}  // namespace
}  // namespace tersekv::bench
