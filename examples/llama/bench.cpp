// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <span>

#include "generate.hpp"

namespace llama {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<Token> arbitrary_tokens(const Model& model, Index count) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<Token> any(0, static_cast<Token>(model.config().vocab_size - 1));
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::ranges::generate(tokens, [&] { return any(random); });
  return tokens;
}

// A sequence that goes on with its likeliest token, and what it has taken so far.
class Sequence {
 public:
  Sequence(const Model& model, const CacheRequest& request, const SessionOptions& options)
      : caches_(make_caches(request)), session_(model, *caches_, options) {}

  void feed(std::span<const Token> tokens, Index chunk) {
    for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(chunk)) {
      const std::size_t count = std::min(tokens.size() - first, static_cast<std::size_t>(chunk));
      score(session_.feed(tokens.subspan(first, count), 0), first + count == tokens.size());
    }
  }
  void go_on() { score(session_.feed({&next_, 1}, 1), true); }

  /// Since the start; `rest` includes what happened between the calls.
  TokenSeconds seconds() const {
    const SessionSeconds& parts = session_.seconds();
    const double policy = caches_->policy_seconds();
    TokenSeconds seconds{parts.projections, parts.caches - policy, policy, 0};
    seconds.rest = seconds_since(start_) - seconds.total();
    return seconds;
  }
  CacheTotals totals() const { return caches_->totals(); }
  Index position() const { return session_.position(); }

 private:
  void score(const Matrix& hidden, bool wanted) {
    if (!wanted) return;
    const Matrix logits = session_.logits(hidden.bottomRows(1));
    next_ = sample({logits.data(), static_cast<std::size_t>(logits.size())}, {}, random_);
  }

  std::unique_ptr<LayerCaches> caches_;
  Session session_;
  std::mt19937_64 random_;  // greedy choice draws nothing from it
  Token next_ = 0;
  const Clock::time_point start_ = Clock::now();
};

// What passed between two looks.
TokenSeconds between(const TokenSeconds& a, const TokenSeconds& b) {
  return {b.projections - a.projections, b.attention - a.attention, b.policy - a.policy,
          b.rest - a.rest};
}

// Part by part, over the tokens that took neither longest nor shortest: robust as a median is, and
// parts still add up to the total.
TokenSeconds mean_of_middle_half(std::vector<TokenSeconds> tokens) {
  std::ranges::sort(tokens, {}, &TokenSeconds::total);
  const std::size_t first = tokens.size() / 4, last = tokens.size() - first;
  TokenSeconds mean;
  for (std::size_t i = first; i < last; ++i) {
    mean.projections += tokens[i].projections / static_cast<double>(last - first);
    mean.attention += tokens[i].attention / static_cast<double>(last - first);
    mean.policy += tokens[i].policy / static_cast<double>(last - first);
    mean.rest += tokens[i].rest / static_cast<double>(last - first);
  }
  return mean;
}

}  // namespace

void warm_up(const Model& model, const CacheRequest& request, const SessionOptions& session) {
  Sequence(model, request, session).feed(arbitrary_tokens(model, 2), 2);
}

Speed measure_speed(const Model& model, const CacheRequest& request, const SpeedOptions& options) {
  Sequence sequence(model, request, options.session);
  sequence.feed(arbitrary_tokens(model, options.context), options.chunk);
  Speed speed;
  TokenSeconds before = sequence.seconds();
  speed.prompt = before;
  std::vector<TokenSeconds> tokens;
  for (Index i = 0; i < options.tokens; ++i) {
    sequence.go_on();
    const TokenSeconds after = sequence.seconds();
    tokens.push_back(between(before, after));
    before = after;
  }
  speed.token = mean_of_middle_half(std::move(tokens));
  speed.cache = sequence.totals();
  speed.full_bytes = full_cache_bytes(request, sequence.position());
  return speed;
}

}  // namespace llama
