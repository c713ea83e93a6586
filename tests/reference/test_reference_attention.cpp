// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "../support/compare.hpp"
#include "../support/golden.hpp"
#include "attention.hpp"

using reference::Attention;
using reference::Vector;
using support::close;
using support::close_all;
using support::GoldenCase;
using support::Integer;

namespace {

struct Item {
  Vector key, value;
  double weight = 1;
};

template <class... I>
std::vector<Item> read_items(const support::Tensor<float>& k, const support::Tensor<float>& v,
                             const support::Tensor<float>& weights, Integer count, I... leading) {
  std::vector<Item> items;
  for (Integer i = 0; i < count; ++i)
    items.push_back(
        {k.vector<double>(leading..., i), v.vector<double>(leading..., i), weights(leading..., i)});
  return items;
}

}  // namespace

TEST_CASE("reference attention agrees with the golden softmax", "[reference][golden]") {
  for (const std::string& name : support::golden_cases("attention_group")) {
    INFO(name);
    const GoldenCase golden(name);
    const auto alphas = golden.setting<std::vector<double>>("alphas");
    const double scale = 1 / std::sqrt(golden.setting<double>("head_dim"));
    const auto scenarios = golden.setting<std::vector<std::string>>("scenarios");
    for (Integer s = 0; s < std::ssize(scenarios); ++s) {
      const bool wide = scenarios[static_cast<std::size_t>(s)].find("200") != std::string::npos;
      const auto [relative, absolute] = wide ? golden.tolerance("wide_logits") : golden.tolerance();
      const auto items = read_items(golden.floats("k"), golden.floats("v"),
                                    golden.floats("weights"), golden.integers("entries")(s), s);
      for (Integer a = 0; a < std::ssize(alphas); ++a) {
        INFO(scenarios[static_cast<std::size_t>(s)] << ", alpha "
                                                    << alphas[static_cast<std::size_t>(a)]);
        std::vector<Attention> heads;
        for (Integer g = 0; g < golden.setting<Integer>("group_size"); ++g) {
          heads.push_back(reference::attend(golden.floats("q").vector<double>(s, g), items,
                                            items.size(), alphas[static_cast<std::size_t>(a)],
                                            scale));
          CHECK(close_all(heads.back().output, golden.floats("output").vector(s, a, g), relative,
                          absolute));
          CHECK(close(heads.back().lse, golden.floats("lse")(s, a, g), relative, absolute));
        }
        const std::pair<const char*, reference::GroupReduce> reductions[] = {
            {"attention_sum", reference::GroupReduce::sum},
            {"attention_max", reference::GroupReduce::max},
            {"attention_mean", reference::GroupReduce::mean}};
        for (const auto& [tensor, reduce] : reductions) {
          INFO(tensor);
          auto want = golden.floats(tensor).vector(s, a);
          want.resize(items.size());
          CHECK(close_all(reference::reduce_group(heads, reduce), want, relative, absolute));
        }
      }
    }
  }
}

TEST_CASE("reference eviction identity agrees with the golden case", "[reference][golden]") {
  const GoldenCase golden("eviction_identity");
  const auto [relative, absolute] = golden.tolerance();
  const double scale = 1 / std::sqrt(golden.setting<double>("head_dim"));
  for (Integer t = 0; t < golden.setting<Integer>("trials"); ++t) {
    const auto items = read_items(golden.floats("k"), golden.floats("v"), golden.floats("weights"),
                                  golden.setting<Integer>("entries"), t);
    const auto evicted = static_cast<std::size_t>(golden.integers("evicted")(t));
    auto others = items;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(evicted));
    for (Integer g = 0; g < golden.setting<Integer>("group_size"); ++g) {
      const Vector query = golden.floats("q").vector<double>(t, g);
      const double alpha = golden.floats("alpha")(t);
      const auto before = reference::attend(query, items, items.size(), alpha, scale);
      const auto after = reference::attend(query, others, others.size(), alpha, scale);
      CHECK(close_all(before.output, golden.floats("output_before").vector(t, g), relative,
                      absolute));
      CHECK(close(before.shares[evicted], golden.floats("attention_of_evicted")(t, g), relative,
                  absolute));
      CHECK(
          close_all(after.output, golden.floats("output_after").vector(t, g), relative, absolute));
      CHECK(close_all(
          reference::output_without(before.output, before.shares[evicted], items[evicted].value),
          after.output, 1e-9, 1e-9));
    }
  }
}

TEST_CASE("reference partial states merge to the whole", "[reference]") {
  const GoldenCase golden("attention_group3");
  for (Integer s = 0; s < 3; ++s) {
    const auto items = read_items(golden.floats("k"), golden.floats("v"), golden.floats("weights"),
                                  golden.integers("entries")(s), s);
    const Vector query = golden.floats("q").vector<double>(s, 0);
    const auto whole = reference::attend(query, items, items.size(), 0.6, 0.2);
    for (std::size_t cut = 1; cut < items.size(); cut += 11) {
      const auto middle = items.begin() + static_cast<std::ptrdiff_t>(cut);
      const std::vector<Item> left(items.begin(), middle), right(middle, items.end());
      const auto a = reference::attend(query, left, left.size(), 0.6, 0.2);
      const auto b = reference::attend(query, right, right.size(), 0.6, 0.2);
      const auto merged = reference::merge_states({a.output, a.lse}, {b.output, b.lse});
      CHECK(close_all(merged.output, whole.output, 1e-12, 1e-12));
      CHECK(close(merged.lse, whole.lse, 1e-12, 1e-12));
      const auto with_nothing = reference::merge_states({}, {a.output, a.lse});
      CHECK(with_nothing.output == a.output);
      CHECK(with_nothing.lse == a.lse);
    }
  }
}

TEST_CASE("reference ZSMerge slots keep Theorem 1 of the golden case", "[reference][golden]") {
  const GoldenCase golden("zsmerge_theorem1");
  const auto [relative, absolute] = golden.tolerance();
  const double scale = 1 / std::sqrt(golden.setting<double>("head_dim"));
  const auto alphas = golden.setting<std::vector<double>>("alphas");
  for (Integer t = 0; t < golden.setting<Integer>("trials"); ++t) {
    std::vector<Item> full, raw, slots(static_cast<std::size_t>(golden.setting<Integer>("slots")));
    std::vector<std::size_t> raw_index;
    for (Item& slot : slots) slot.weight = 0;
    for (Integer i = 0; i < golden.setting<Integer>("tokens"); ++i) {
      full.push_back(
          {golden.floats("k").vector<double>(t, i), golden.floats("v").vector<double>(t, i)});
      const Integer s = golden.integers("slot_of_token")(t, i);
      if (s < 0) {
        raw.push_back(full.back());
        raw_index.push_back(full.size() - 1);
        continue;
      }
      Item& slot = slots[static_cast<std::size_t>(s)];
      slot.key.resize(full.back().key.size());
      slot.value.resize(full.back().value.size());
      for (std::size_t x = 0; x < slot.key.size(); ++x) {
        slot.key[x] = (slot.weight * slot.key[x] + full.back().key[x]) / (slot.weight + 1);
        slot.value[x] = (slot.weight * slot.value[x] + full.back().value[x]) / (slot.weight + 1);
      }
      slot.weight += 1;
    }
    std::vector<Item> compressed = raw;
    for (Integer s = 0; s < std::ssize(slots); ++s) {
      const Item& slot = slots[static_cast<std::size_t>(s)];
      CHECK(close_all(slot.key, golden.floats("slot_keys").vector(t, s), relative, absolute));
      CHECK(close_all(slot.value, golden.floats("slot_values").vector(t, s), relative, absolute));
      CHECK(slot.weight == static_cast<double>(golden.floats("slot_weights")(t, s)));
      compressed.push_back(slot);
    }
    const Vector query = golden.floats("q").vector<double>(t);
    const auto exact = reference::attend(query, full, full.size(), 1, scale);
    for (Integer a = 0; a < std::ssize(alphas); ++a) {
      const auto got = reference::attend(query, compressed, compressed.size(),
                                         alphas[static_cast<std::size_t>(a)], scale);
      CHECK(close_all(got.output, golden.floats("output_compressed").vector(t, a), relative,
                      absolute));
      for (std::size_t r = 0; r < raw.size(); ++r) {
        const auto entry = static_cast<Integer>(r);
        CHECK(close(exact.shares[raw_index[r]], golden.floats("attention_full")(t, entry), relative,
                    absolute));
        CHECK(close(got.shares[r], golden.floats("attention_compressed")(t, a, entry), relative,
                    absolute));
        CHECK(got.shares[r] >= exact.shares[raw_index[r]]);
      }
    }
  }
}
