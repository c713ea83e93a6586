// SPDX-License-Identifier: Apache-2.0
#include "compare.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "progress.hpp"

namespace llama {
namespace {

using Tokens = std::span<const Token>;

// The policies asked for, the full cache first: it is what the others are measured against.
std::vector<const PolicyInfo*> choose_policies(const CompareOptions& options,
                                               std::vector<std::string>& notes) {
  std::vector<const PolicyInfo*> chosen = {&find_policy("full")};
  const auto add = [&](const PolicyInfo& policy) {
    if (std::ranges::find(chosen, &policy) == chosen.end()) chosen.push_back(&policy);
  };
  for (const std::string& name : options.policies) {
    if (name != "all") {
      add(find_policy(name));
      continue;
    }
    for (const PolicyInfo& policy : policy_catalogue()) {
      const std::string& needed = policy.needs_setting;
      if (needed.empty() ||
          std::ranges::find(options.settings, needed, &Setting::name) != options.settings.end()) {
        add(policy);
      } else {
        notes.push_back(policy.name + " is left out: it cannot run without --set " + needed);
      }
    }
  }
  return chosen;
}

void check_settings(const std::vector<const PolicyInfo*>& policies,
                    const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    if (std::ranges::none_of(policies, [&](const PolicyInfo* policy) {
          return has_parameter(*policy, setting.name);
        })) {
      throw std::invalid_argument("none of the policies compared has a parameter '" + setting.name +
                                  "' (see: tersekv-llama policies)");
    }
  }
}

CompareRow plan_row(const Model& model, const PolicyInfo& policy, const BudgetSpec* budget,
                    const CompareOptions& options, Index recall_tokens, Index instruction) {
  CompareRow row;
  row.budget = budget != nullptr ? budget->text() : "-";
  CacheRequest request{.policy = policy.name,
                       .kv_type = options.kv_type,
                       .shape = model.cache_shape(),
                       .device = options.device};
  for (const Setting& setting : options.settings) {
    if (has_parameter(policy, setting.name)) request.settings.push_back(setting);
  }
  row.prose_request = row.recall_request = request;
  row.prose_request.tokens = options.context;
  row.recall_request.tokens = recall_tokens;
  if (budget != nullptr) {
    row.prose_request.budget = budget->entries(options.context);
    row.recall_request.budget = budget->entries(recall_tokens);
  }
  if (policy.only_after_prompts) {
    row.prose_schedule.prompt = options.context / 2;
    row.recall_schedule.prompt = options.recall_length + instruction;
  }
  return row;
}

// Refuses parameters that are wrong whatever the budget.
void check_parameters(const CompareRow& row) {
  CacheRequest request = row.prose_request;
  request.budget.reset();
  make_caches(request);
}

// Calls every job, `workers` at a time; rethrows the first exception once all workers have stopped.
void run_jobs(const std::vector<std::function<void()>>& jobs, int workers) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t job; (job = next++) < jobs.size();) {
      try {
        jobs[job]();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = jobs.size();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < workers; ++i) threads.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Comparison compare(const Model& model, Tokens text, Tokens instruction,
                   const CompareOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Comparison result{.options = options, .rows = {}, .notes = {}};
  const Tokens prose = segment(text, options.offset, options.context + 1);
  const std::vector<Token> stream =
      recall_stream(segment(text, options.offset, options.recall_length), instruction);
  const Index recall_tokens = static_cast<Index>(stream.size());

  const auto policies = choose_policies(options, result.notes);
  check_settings(policies, options.settings);
  std::string refusal;
  for (const PolicyInfo* policy : policies) {
    const auto plan = [&](const BudgetSpec* budget) {
      CompareRow row = plan_row(model, *policy, budget, options, recall_tokens,
                                static_cast<Index>(instruction.size()));
      check_parameters(row);
      try {  // now, before anything is run
        make_caches(row.prose_request);
        make_caches(row.recall_request);
      } catch (const std::invalid_argument& error) {
        refusal = policy->name + " at " + row.budget + " is left out: " + error.what();
        return result.notes.push_back(refusal);
      }
      result.rows.push_back(std::move(row));
    };
    if (policy->needs_budget) {
      for (const BudgetSpec& budget : options.budgets) plan(&budget);
    } else {
      plan(nullptr);
    }
    if (policy->only_after_prompts) {
      result.notes.push_back(policy->name +
                             " evicts only after a prompt: half of the prose, or the passage and "
                             "the instruction, is fed as one");
    }
  }
  if (result.rows.size() == 1 && !refusal.empty()) throw std::invalid_argument(refusal);

  const Index layers = model.config().layers;
  Progress progress("comparing", static_cast<Index>(result.rows.size()) * layers *
                                     (options.context + recall_tokens - 1));
  const SessionOptions session{.on_layer = [&](Index tokens) { progress.advance(tokens); }};
  std::vector<std::function<void()>>
      jobs;  // the long ones first, so that no worker idles at the end
  for (CompareRow& row : result.rows) {
    jobs.emplace_back([&] {
      row.prose = measure_perplexity(model, row.prose_request, prose, options.from,
                                     row.prose_schedule, session);
    });
  }
  for (CompareRow& row : result.rows) {
    jobs.emplace_back([&] {
      row.recall = measure_recall(model, row.recall_request, stream, options.recall_length,
                                  row.recall_schedule, session);
    });
  }
  run_jobs(jobs, options.workers);
  for (CompareRow& row : result.rows) {
    row.perplexity_ratio = std::exp(row.prose.nll - result.rows.front().prose.nll);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace llama
