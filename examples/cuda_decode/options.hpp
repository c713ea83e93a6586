// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace decode {

using Index = std::int64_t;

/// Entries per KV head that every policy can work with.
inline constexpr Index kLeastBudget = 64;

inline const std::vector<std::string> kPolicyNames = {
    "full",    "streaming_llm", "h2o",     "tova",   "snapkv",
    "zsmerge", "weightedkv",    "morphkv", "keepkv", "kvzap"};

inline constexpr const char* kHelp =
    R"(cuda_decode: decode steps of a model of Llama-3-8B's shape, with the full cache and every policy

  --context N    tokens in the caches before the first step (32768)
  --keep P       per cent of them that policies keep (10)
  --batch N      sequences, each of --context tokens (1)
  --layers N     of 32: fewer for cards with less memory (32)
  --steps N      steps measured (64)
  --policy NAME  one of full, streaming_llm, h2o, tova, snapkv, zsmerge, weightedkv, morphkv, keepkv,
                 kvzap (all)

Weights and inputs are random, so no model is needed and the output means nothing; the embedding, RoPE
and the choice of the next token are left out, the output matrix is not. Prompts are not computed: random
keys and values are appended in chunks, and the policies see attention of random queries. KVzap's scores
are random, its threshold is such that about as much stays as with the others.

A step is one CUDA graph. Its time is the mean over all of them. "apart" is the same with policies on
a stream of their own, so that they are at work while the layer goes on; "caches" is the time of the
caches' part: append, attention, policy. "fits" is computed, not run: free memory beside the weights, over the
bytes that one sequence takes.
)";

struct Options {
  Index context = 32768, batch = 1, layers = 32, steps = 64;
  double keep = 10;
  std::string policy = "all";
  bool help = false;

  /// Entries per KV head.
  Index budget() const {
    return static_cast<Index>(std::ceil(keep / 100 * static_cast<double>(context) - 1e-6));
  }
};

template <class Number>
Number parse_number(std::string_view name, std::string_view text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  const auto shown = [](Number x) { return std::to_string(static_cast<Index>(x)); };
  throw std::invalid_argument(std::string(name) + " is '" + std::string(text) +
                              "', expected a number from " + shown(least) + " to " + shown(most));
}

/// Throws std::invalid_argument, one line, for what cannot be run as written.
inline Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") {
      options.help = true;
      return options;
    }
    const auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size()) throw std::invalid_argument(name + " needs a value");
      return arguments[++i];
    };
    if (name == "--context") {
      options.context = parse_number<Index>(name, value(), kLeastBudget, Index{1} << 24);
    } else if (name == "--batch") {
      options.batch = parse_number<Index>(name, value(), 1, 4096);
    } else if (name == "--layers") {
      options.layers = parse_number<Index>(name, value(), 1, 32);
    } else if (name == "--steps") {
      options.steps = parse_number<Index>(name, value(), 1, 100000);
    } else if (name == "--keep") {
      options.keep = parse_number<double>(name, value(), 0, 100);
    } else if (name == "--policy") {
      options.policy = value();
      bool known = options.policy == "all";
      for (const std::string& policy : kPolicyNames) known = known || policy == options.policy;
      if (!known) throw std::invalid_argument("no policy '" + options.policy + "'");
    } else {
      throw std::invalid_argument("unknown option '" + name + "'");
    }
  }
  if (options.budget() < kLeastBudget) {
    throw std::invalid_argument("--keep leaves " + std::to_string(options.budget()) +
                                " entries of --context, expected at least " +
                                std::to_string(kLeastBudget));
  }
  return options;
}

}  // namespace decode
