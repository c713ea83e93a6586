// SPDX-License-Identifier: Apache-2.0
#include "evaluate.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace llama {
namespace {

// Rows whose scores over the whole vocabulary are held at once.
constexpr Index kLogitRows = 128;

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Appends the negative log-likelihoods of `targets`, one per row of `hidden`.
void score(Session& session, const Eigen::Ref<const Matrix>& hidden, std::span<const Token> targets,
           std::vector<double>& nlls) {
  for (Index first = 0; first < hidden.rows(); first += kLogitRows) {
    const Index count = std::min(kLogitRows, hidden.rows() - first);
    const Matrix logits = session.logits(hidden.middleRows(first, count));
    for (Index row = 0; row < count; ++row) {
      nlls.push_back(negative_log_likelihood(
          {logits.row(row).data(), static_cast<std::size_t>(logits.cols())}, targets[first + row]));
    }
  }
}

// Runs `tokens` through a new session and cache, and returns the negative log-likelihoods of
// tokens[1], tokens[2], ...; fills in all of `result` but its means.
std::vector<double> run(const Model& model, const CacheRequest& request,
                        std::span<const Token> tokens, const Schedule& schedule,
                        const SessionOptions& options, Evaluation& result) {
  auto caches = make_caches(request);
  Session session(model, *caches, options);
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> nlls;
  const Index total = static_cast<Index>(tokens.size()) - 1;
  const Index prompt = schedule.prompt.value_or(0);
  for (Index first = 0; first < total;) {
    const bool in_prompt = first < prompt;
    const Index count = std::min(in_prompt ? prompt : schedule.chunk, total - first);
    const Index compress_every = in_prompt ? 0 : schedule.prompt ? kNever : 1;
    const Matrix hidden = session.feed(tokens.subspan(first, count), compress_every);
    score(session, hidden, tokens.subspan(first + 1, count), nlls);
    first += count;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.fed = total;
  result.cache = caches->totals();
  caches.reset();  // a full cache may have no room beside them
  result.full_bytes = full_cache_bytes(request, total);
  return nlls;
}

}  // namespace

double negative_log_likelihood(std::span<const float> logits, Token target) {
  const Eigen::Map<const Eigen::ArrayXf> scores(logits.data(), static_cast<Index>(logits.size()));
  const float top = scores.maxCoeff();
  const double sum = (scores - top).exp().sum();
  return std::log(sum) + top - static_cast<double>(scores[target]);
}

ProseEvaluation measure_perplexity(const Model& model, const CacheRequest& request,
                                   std::span<const Token> tokens, Index from,
                                   const Schedule& schedule, const SessionOptions& options) {
  ProseEvaluation result;
  const std::vector<double> nlls = run(model, request, tokens, schedule, options, result);
  const auto counted = std::span<const double>(nlls).subspan(static_cast<std::size_t>(from));
  result.tokens = static_cast<Index>(counted.size());
  result.nll = mean(counted);
  result.whole_nll = mean(nlls);
  return result;
}

std::span<const Token> segment(std::span<const Token> text, Index offset, Index count) {
  const Index size = static_cast<Index>(text.size());
  if (offset > size || count > size - offset) {
    throw std::invalid_argument("the text is too short: it has " + std::to_string(size) +
                                " tokens, expected at least " + std::to_string(offset + count));
  }
  return text.subspan(offset, count);
}

std::vector<Token> recall_stream(std::span<const Token> passage,
                                 std::span<const Token> instruction) {
  std::vector<Token> stream(passage.begin(), passage.end());
  stream.insert(stream.end(), instruction.begin(), instruction.end());
  stream.insert(stream.end(), passage.begin(), passage.end());
  return stream;
}

RecallEvaluation measure_recall(const Model& model, const CacheRequest& request,
                                std::span<const Token> stream, Index length,
                                const Schedule& schedule, const SessionOptions& options) {
  if (length <= kRecallLead) {
    throw std::invalid_argument("recall of " + std::to_string(length) +
                                " tokens: expected more than " + std::to_string(kRecallLead));
  }
  RecallEvaluation result;
  const std::vector<double> nlls = run(model, request, stream, schedule, options, result);
  const std::span<const double> all(nlls);  // all[i] is the prediction of stream[i + 1]
  const std::span<const double> second = all.last(length - kRecallLead);
  result.tokens = static_cast<Index>(second.size());
  result.nll = mean(second);
  result.first_copy_nll = mean(all.first(length - 1));
  return result;
}

}  // namespace llama
