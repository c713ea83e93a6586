// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "caches.hpp"
#include "model.hpp"

namespace llama {

/// What stands between the two copies of a passage; tokenised on its own.
inline constexpr std::string_view kRecallInstruction =
    "\n\nRepeat the previous context exactly.\n\n";
/// The first tokens of the second copy are not counted: they say where in the text we are.
inline constexpr Index kRecallLead = 16;

/// How a text is fed. Whatever the chunk, the policy runs after every token (or once after the
/// prompt), so the chunk changes speed and memory but no result beyond rounding.
struct Schedule {
  Index chunk = 1024;
  /// Given: these first tokens at once, one compression after them, and no eviction thereafter.
  std::optional<Index> prompt = {};
};

/// What a run measured.
struct Evaluation {
  double nll = 0;    ///< mean negative log-likelihood, natural logarithm
  Index tokens = 0;  ///< predictions that `nll` is the mean of
  Index fed = 0;     ///< tokens that passed through the model
  double seconds = 0;
  CacheTotals cache = {};  ///< at the end
  Index full_bytes = 0;    ///< what a cache that keeps everything would hold at the end

  double perplexity() const { return std::exp(nll); }
  double tokens_per_second() const { return static_cast<double>(fed) / seconds; }
};

struct ProseEvaluation : Evaluation {
  double whole_nll = 0;  ///< mean over all predictions, those before `from` too
};

struct RecallEvaluation : Evaluation {  ///< nll and tokens: the second copy's
  double first_copy_nll = 0;
};

/// Of `target`, given the scores of the whole vocabulary.
double negative_log_likelihood(std::span<const float> logits, Token target);

/// Teacher-forced: feeds all tokens but the last and predicts each from those before it. The mean
/// is over predictions of tokens[from + 1] and later.
ProseEvaluation measure_perplexity(const Model& model, const CacheRequest& request,
                                   std::span<const Token> tokens, Index from,
                                   const Schedule& schedule, const SessionOptions& options);

/// `count` tokens of a text. Throws std::invalid_argument where the text ends before.
std::span<const Token> segment(std::span<const Token> text, Index offset, Index count);

/// A passage, the instruction, the passage again.
std::vector<Token> recall_stream(std::span<const Token> passage,
                                 std::span<const Token> instruction);

/// Feeds recall_stream() of a passage of `length` tokens. Throws std::invalid_argument where the
/// passage is too short to count anything.
RecallEvaluation measure_recall(const Model& model, const CacheRequest& request,
                                std::span<const Token> stream, Index length,
                                const Schedule& schedule, const SessionOptions& options);

}  // namespace llama
