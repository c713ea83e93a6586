// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evaluate.hpp"
#include "options.hpp"

namespace llama {

struct CompareOptions {
  std::vector<std::string> policies;  ///< names, or "all"
  std::vector<BudgetSpec> budgets;
  std::vector<Setting> settings;  ///< each goes to the policies that have such a parameter
  std::string kv_type = "f32";
  std::string device = "cpu";
  Index context = 0;
  Index offset = 0;
  Index from = 0;           ///< prose: predictions of tokens from + 1 and later count
  Index recall_length = 0;  ///< tokens of the repeated passage
  int workers = 1;
};

/// One policy under one budget. A share stands for that share of the prose in the one run and of
/// the recall stream in the other.
struct CompareRow {
  CacheRequest prose_request, recall_request;
  std::string budget;  ///< as it was given; "-" where the policy takes none
  Schedule prose_schedule, recall_schedule;
  Evaluation prose;
  RecallEvaluation recall;
  double perplexity_ratio = 1;  ///< of the prose, over that of the full cache
};

struct Comparison {
  CompareOptions options;
  std::vector<CompareRow> rows;    ///< the full cache first
  std::vector<std::string> notes;  ///< what a reader of the table should know
  double seconds = 0;
};

/// Runs every policy under every budget, `workers` runs at a time, each on one thread: with few KV
/// heads that is much faster than sharing one run. The same numbers whatever the number of workers.
/// A budget too small for a policy leaves that row out, with a note.
/// Throws std::invalid_argument before anything is run where a policy or a setting is wrong, no
/// policy can do with the budgets, or the text is too short.
Comparison compare(const Model& model, std::span<const Token> text,
                   std::span<const Token> instruction, const CompareOptions& options);

}  // namespace llama
