// SPDX-License-Identifier: Apache-2.0
#include "generate.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace llama {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Token sample(std::span<const float> logits, const Sampling& sampling, std::mt19937_64& random) {
  const auto best = std::ranges::max_element(logits);
  if (sampling.temperature == 0) return static_cast<Token>(best - logits.begin());

  std::vector<double> probability(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probability[i] = std::exp((static_cast<double>(logits[i]) - *best) / sampling.temperature);
  }
  const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](Token a, Token b) { return probability[a] > probability[b]; });
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < sampling.top_p * total)) {
    kept += probability[order[count++]];
  }
  double left = std::uniform_real_distribution<double>(0, kept)(random);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= probability[order[i]];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

Generation generate(const Model& model, const Tokenizer& tokenizer, const CacheRequest& request,
                    std::span<const Token> prompt, Index max_tokens, const Sampling& sampling,
                    const SessionOptions& options, const std::function<void(Token)>& emit) {
  auto caches = make_caches(request);
  Session session(model, *caches, options);
  std::mt19937_64 random(sampling.seed);
  const Clock::time_point start = Clock::now();  // weights have been packed by now
  Generation result;
  Matrix hidden = session.feed(prompt, 0);
  result.prompt_seconds = seconds_since(start);
  double nll = 0;
  while (result.tokens < max_tokens) {
    const Matrix logits = session.logits(hidden.bottomRows(1));
    const std::span<const float> row(logits.data(), logits.size());
    // Matrices may have more rows than there are tokens.
    const Token token = sample(row.first(tokenizer.vocab_size()), sampling, random);
    if (tokenizer.is_end(token)) break;
    nll += negative_log_likelihood(row, token);
    result.output.push_back(token);
    ++result.tokens;
    emit(token);
    if (result.tokens < max_tokens) hidden = session.feed({&token, 1}, 1);
  }
  result.seconds = seconds_since(start);
  result.nll = result.tokens > 0 ? nll / static_cast<double>(result.tokens) : 0;
  result.fed = session.position();
  result.cache = caches->totals();
  caches.reset();  // a full cache may have no room beside them
  result.full_bytes = full_cache_bytes(request, result.fed);
  return result;
}

}  // namespace llama
