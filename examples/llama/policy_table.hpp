// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tersekv/tersekv.hpp>
#include <utility>
#include <vector>

#include "caches.hpp"

// The policies by name, each with its parameters: the one table behind the catalogue, `--set`, and
// the making of caches.
namespace llama {

/// A field of a library options struct that `--set` reaches. Its default is the struct's own; its
/// range is the library's to check.
template <class Options>
struct Parameter {
  std::string name, values, meaning;
  std::function<void(Options&, const std::string&)> set;
  std::function<std::string(const Options&)> show;

  ParameterInfo info() const { return {name, values, show(Options{}), meaning}; }
  [[noreturn]] void refuse(const std::string& got) const {
    throw std::invalid_argument("parameter " + name + " is '" + got + "', expected " + values);
  }
};

/// Whole numbers and fractions; a whole number that may be left to the method is shown as "auto".
template <class Options, class Base, class Number>
Parameter<Options> number(std::string name, Number Base::*field, std::string values,
                          std::string meaning) {
  Parameter<Options> parameter{std::move(name), std::move(values), std::move(meaning), {}, {}};
  parameter.show = [field](const Options& options) {
    if (options.*field == Number{tersekv::kAuto} && std::is_integral_v<Number>) {
      return std::string("auto");
    }
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, options.*field).ptr);
  };
  parameter.set = [parameter, field](Options& options, const std::string& text) {
    if (parameter.show(Options{}) == "auto" && text == "auto") {
      options.*field = Number{tersekv::kAuto};
      return;
    }
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, options.*field);
    const bool negative = std::is_integral_v<Number> && options.*field < 0;  // kAuto has a name
    if (error != std::errc() || stop != end || negative) parameter.refuse(text);
  };
  return parameter;
}

template <class Options, class Base, class Choice>
Parameter<Options> choice(std::string name, Choice Base::*field,
                          std::vector<std::pair<std::string, Choice>> choices,
                          std::string meaning) {
  std::string values;
  for (const auto& [text, value] : choices) values += (values.empty() ? "" : ", ") + text;
  Parameter<Options> parameter{std::move(name), std::move(values), std::move(meaning), {}, {}};
  parameter.show = [field, choices](const Options& options) {
    for (const auto& [text, value] : choices) {
      if (options.*field == value) return text;
    }
    return std::string();
  };
  parameter.set = [parameter, field, choices](Options& options, const std::string& text) {
    for (const auto& [known, value] : choices) {
      if (known == text) {
        options.*field = value;
        return;
      }
    }
    parameter.refuse(text);
  };
  return parameter;
}

/// A policy as the table has it. `create(options, use)` returns use(policy), for a policy that
/// scores tokens use(policy, surrogates).
template <class Options, class Create>
struct PolicyEntry {
  PolicyInfo info;  // its parameters are filled in from those below
  std::vector<Parameter<Options>> parameters;
  Create create;
};
template <class Options, class Create>
PolicyEntry<Options, Create> policy_entry(PolicyInfo info,
                                          std::vector<Parameter<Options>> parameters,
                                          Create create) {
  for (const Parameter<Options>& parameter : parameters) {
    info.parameters.push_back(parameter.info());
  }
  return {std::move(info), std::move(parameters), std::move(create)};
}

struct NoOptions {};
struct KeepKVSettings : tersekv::KeepKVOptions {
  bool pair = false;
};
struct KVzapSettings : tersekv::KVzapOptions {
  std::string surrogate;
};

inline const std::vector<Parameter<tersekv::CacheConfig>>& cache_parameters() {
  using Options = tersekv::CacheConfig;
  using tersekv::GroupReduce;
  static const std::vector<Parameter<Options>> parameters = {
      choice<Options>(
          "group_reduce", &Options::group_reduce,
          {{"sum", GroupReduce::sum}, {"mean", GroupReduce::mean}, {"max", GroupReduce::max}},
          "attention of the query heads that share a KV head becomes one number by"),
      number<Options>("page_size", &Options::page_size, "a power of two from 16 to 4096",
                      "entries per page of memory")};
  return parameters;
}

/// Calls visit(entry) for every policy, in the order in which they are shown.
template <class Visit>
void for_each_policy(Visit&& visit) {
  const std::string up_to_budget = "0 up to the budget";
  visit(policy_entry<NoOptions>({"full", "everything", false, false, "", {}}, {},
                                [](const NoOptions&, auto&& use) { return use(tersekv::Full{}); }));
  {
    using O = tersekv::StreamingLLMOptions;
    visit(policy_entry<O>(
        {"streaming_llm", "the first tokens and the latest", true, false, "", {}},
        {number<O>("sinks", &O::sinks, "0 to budget - 1", "first tokens kept")},
        [](const O& options, auto&& use) { return use(tersekv::make_streaming_llm(options)); }));
  }
  {
    using O = tersekv::H2OOptions;
    visit(policy_entry<O>(
        {"h2o", "the latest tokens and those with the most attention so far", true, false, "", {}},
        {number<O>("recent", &O::recent, up_to_budget + "; auto: half of it, rounded up",
                   "latest tokens protected")},
        [](const O& options, auto&& use) { return use(tersekv::make_h2o(options)); }));
  }
  visit(policy_entry<NoOptions>(
      {"tova", "the tokens that the latest query attends to most", true, false, "", {}}, {},
      [](const NoOptions&, auto&& use) { return use(tersekv::make_tova()); }));
  {
    using O = tersekv::SnapKVOptions;
    visit(policy_entry<O>(
        {"snapkv",
         "after a prompt: its last tokens and those they attended to most; then everything",
         true,
         true,
         "",
         {}},
        {number<O>("window", &O::window, "1 up to the budget", "last tokens, kept and observed"),
         number<O>("kernel", &O::kernel, "odd", "neighbours whose attention is averaged")},
        [](const O& options, auto&& use) { return use(tersekv::make_snapkv(options)); }));
  }
  {
    using O = tersekv::ZSMergeOptions;
    visit(policy_entry<O>(
        {"zsmerge",
         "the latest tokens, the best-scored older ones, and the rest averaged into a few slots",
         true,
         false,
         "",
         {}},
        {number<O>("proximity", &O::proximity, "1 up to the budget; auto: half of it",
                   "latest tokens protected"),
         number<O>("residual", &O::residual, "0 or more; auto: 2 % of budget - proximity",
                   "slots that absorb the rest; 0: it is dropped"),
         number<O>("decay", &O::decay, "0 to 1", "of the scores, per query"),
         number<O>("alpha", &O::alpha, "0 to 1", "compensation for merged entries in attention"),
         number<O>("window", &O::window, "1 or more", "last queries of a prompt that set scores")},
        [](const O& options, auto&& use) { return use(tersekv::make_zsmerge(options)); }));
  }
  {
    using O = tersekv::WeightedKVOptions;
    visit(policy_entry<O>(
        {"weightedkv",
         "first, latest and most attended tokens; values of the others go to their neighbours",
         true,
         false,
         "",
         {}},
        {number<O>("sinks", &O::sinks, up_to_budget, "first tokens protected"),
         number<O>("recent", &O::recent, up_to_budget + "; auto: half of it less the sinks",
                   "latest tokens protected")},
        [](const O& options, auto&& use) { return use(tersekv::make_weightedkv(options)); }));
  }
  {
    using O = tersekv::MorphKVOptions;
    using tersekv::Fusion;
    visit(policy_entry<O>(
        {"morphkv",
         "the latest tokens and the older ones that these attended to most",
         true,
         false,
         "",
         {}},
        {number<O>("recent", &O::recent, "1 up to the budget", "latest tokens protected"),
         choice<O>("fusion", &O::fusion, {{"sum", Fusion::sum}, {"max", Fusion::max}},
                   "attention of the latest queries becomes a score by"),
         number<O>("interval", &O::interval, "1 or more", "tokens between evictions"),
         number<O>("uncompressed_layers", &O::uncompressed_layers, "0 or more",
                   "first layers that keep everything")},
        [](const O& options, auto&& use) { return use(tersekv::make_morphkv(options)); }));
  }
  {
    using O = KeepKVSettings;
    using tersekv::KeyRule;
    visit(policy_entry<O>(
        {"keepkv",
         "first, latest and most attended tokens; the others merged into similar ones",
         true,
         false,
         "",
         {}},
        {choice<O>("selector", &O::pair, {{"victim", false}, {"pair", true}},
                   "who is merged: the least attended, or the most similar pair"),
         choice<O>("key_rule", &O::key_rule,
                   {{"mean", KeyRule::mean},
                    {"scale", KeyRule::scale},
                    {"along_query", KeyRule::along_query}},
                   "key of a merged entry (scale, the paper's, destroys real models)"),
         number<O>("recent", &O::recent, up_to_budget + "; auto: half of it",
                   "latest tokens protected"),
         number<O>("sinks", &O::sinks, up_to_budget, "first tokens protected"),
         number<O>("decay", &O::decay, "above 0, below 1", "of the predicted attention, per query"),
         number<O>("window", &O::window, "1 or more", "last queries of a prompt that count")},
        [](const O& options, auto&& use) {
          return options.pair ? use(tersekv::make_keepkv_pair(options))
                              : use(tersekv::make_keepkv(options));
        }));
  }
  {
    using O = KVzapSettings;
    Parameter<O> surrogate{"surrogate", "a safetensors file", "predicts how much a token matters",
                           [](O& options, const std::string& text) { options.surrogate = text; },
                           [](const O& options) { return options.surrogate; }};
    visit(policy_entry<O>(
        {"kvzap",
         "the latest tokens and those predicted to matter; no budget",
         false,
         false,
         "surrogate",
         {}},
        {surrogate,
         number<O>("threshold", &O::threshold, "any number",
                   "predicted log-score below which a token leaves"),
         number<O>("window", &O::window, "0 or more", "latest tokens protected")},
        [](const O& options, auto&& use) {
          if (options.surrogate.empty()) {
            throw std::invalid_argument("kvzap needs a surrogate: --set surrogate=FILE");
          }
          return use(tersekv::make_kvzap(options), tersekv::load_surrogates(options.surrogate));
        }));
  }
}

}  // namespace llama
