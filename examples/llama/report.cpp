// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace llama {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024.0;

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

Json settings_json(const std::vector<Setting>& settings) {
  Json json = Json::object();
  for (const Setting& setting : settings) json[setting.name] = setting.value;
  return json;
}

Json parameters_json(const std::vector<ParameterInfo>& parameters) {
  Json json = Json::array();
  for (const ParameterInfo& p : parameters) {
    json.push_back({{"name", p.name},
                    {"values", p.values},
                    {"default", p.default_value},
                    {"meaning", p.meaning}});
  }
  return json;
}

Json milliseconds(const TokenSeconds& seconds, double tokens) {
  return {{"total", 1e3 * seconds.total() / tokens},
          {"projections", 1e3 * seconds.projections / tokens},
          {"attention", 1e3 * seconds.attention / tokens},
          {"policy", 1e3 * seconds.policy / tokens},
          {"rest", 1e3 * seconds.rest / tokens}};
}

double share(const Evaluation& run) {
  return static_cast<double>(run.cache.bytes) / static_cast<double>(run.full_bytes);
}

// Notes end in the words "--set surrogate=...", so lines are only broken between words.
void print_wrapped(std::ostream& out, const std::string& text, std::size_t width,
                   const std::string& indent) {
  std::string line;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (!line.empty() && line.size() + 1 + (end - begin) > width) {
      out << line << "\n" << indent;
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line.append(text, begin, end - begin);
    begin = end + 1;
  }
  out << line << "\n";
}

void print_parameters(std::ostream& out, const std::vector<ParameterInfo>& parameters) {
  for (const ParameterInfo& p : parameters) {
    const std::string standard = p.name + "=" + (p.default_value.empty() ? "..." : p.default_value);
    out << format("    %-22s ", standard.c_str());
    print_wrapped(out, p.meaning + " (" + p.values + ")", 70, std::string(27, ' '));
  }
}

}  // namespace

Json to_json(const CacheRequest& request, Index context, const Evaluation& run) {
  Json json{{"policy", request.policy},
            {"budget", request.budget ? Json(*request.budget) : Json()},
            {"settings", settings_json(request.settings)},
            {"kv_type", request.kv_type},
            {"context", context},
            {"tokens", run.tokens},
            {"nll", run.nll},
            {"perplexity", run.perplexity()},
            {"kept_entries", run.cache.kept_entries},
            {"seen_entries", run.cache.seen_entries},
            {"cache_bytes", run.cache.bytes},
            {"full_cache_bytes", run.full_bytes},
            {"evictions", run.cache.evictions},
            {"merges", run.cache.merges},
            {"seconds", run.seconds},
            {"tokens_per_second", run.tokens_per_second()}};
  if (request.device != "cpu") json["device"] = request.device;
  return json;
}

Json to_json(const Comparison& comparison) {
  const CompareOptions& options = comparison.options;
  Json rows = Json::array();
  for (const CompareRow& row : comparison.rows) {
    Json json = to_json(row.prose_request, options.context, row.prose);
    json["budget_given"] = row.budget;
    json["perplexity_ratio"] = row.perplexity_ratio;
    Json recall = to_json(row.recall_request, row.recall.fed + 1, row.recall);
    recall["length"] = options.recall_length;
    recall["first_copy_perplexity"] = std::exp(row.recall.first_copy_nll);
    json["recall"] = std::move(recall);
    rows.push_back(std::move(json));
  }
  return {{"context", options.context}, {"offset", options.offset},
          {"from", options.from},       {"recall_length", options.recall_length},
          {"kv_type", options.kv_type}, {"seconds", comparison.seconds},
          {"notes", comparison.notes},  {"rows", std::move(rows)}};
}

Json to_json(std::span<const SpeedRow> rows, const SpeedOptions& options) {
  const CacheRequest& request = rows.front().request;
  Json json{{"policy", request.policy},           {"settings", settings_json(request.settings)},
            {"kv_type", request.kv_type},         {"device", request.device},
            {"threads", request.team->threads()}, {"chunk", options.chunk},
            {"tokens", options.tokens},           {"rows", Json::array()}};
  for (const SpeedRow& row : rows) {
    json["rows"].push_back({{"context", row.context},
                            {"budget", row.request.budget ? Json(*row.request.budget) : Json()},
                            {"prompt_tokens_per_second", row.prompt_rate()},
                            {"decode_tokens_per_second", row.decode_rate()},
                            {"milliseconds_per_prompt_token",
                             milliseconds(row.speed.prompt, static_cast<double>(row.context))},
                            {"milliseconds_per_token", milliseconds(row.speed.token, 1)},
                            {"kept_entries", row.speed.cache.kept_entries},
                            {"cache_bytes", row.speed.cache.bytes},
                            {"full_cache_bytes", row.speed.full_bytes}});
  }
  return json;
}

Json catalogue_json() {
  Json policies = Json::array();
  for (const PolicyInfo& policy : policy_catalogue()) {
    policies.push_back({{"name", policy.name},
                        {"keeps", policy.keeps},
                        {"needs_budget", policy.needs_budget},
                        {"needs_setting", policy.needs_setting},
                        {"parameters", parameters_json(policy.parameters)}});
  }
  return {{"policies", std::move(policies)},
          {"common_parameters", parameters_json(common_parameters())}};
}

std::string summary(const CacheRequest& request, const Evaluation& run) {
  const CacheTotals& cache = run.cache;
  return format(
      "%s: perplexity %.4f over %lld tokens; %lld of %lld entries, %.1f of %.1f MiB; "
      "%.1f s, %.1f tokens/s",
      request.policy.c_str(), run.perplexity(), static_cast<long long>(run.tokens),
      static_cast<long long>(cache.kept_entries), static_cast<long long>(cache.seen_entries),
      static_cast<double>(cache.bytes) / kMiB, static_cast<double>(run.full_bytes) / kMiB,
      run.seconds, run.tokens_per_second());
}

void print_table(std::ostream& out, const Comparison& comparison) {
  const CompareOptions& options = comparison.options;
  out << format(
      "Prose: %lld tokens, perplexity of those from %lld on. Recall: a passage of %lld "
      "tokens, read twice;\nperplexity of the second copy (1 = repeated by heart, %.1f = "
      "as if never seen).\n\n",
      static_cast<long long>(options.context), static_cast<long long>(options.from + 1),
      static_cast<long long>(options.recall_length),
      std::exp(comparison.rows.front().recall.first_copy_nll));
  out << format("%-14s %7s %12s %9s %8s %11s %7s %8s\n", "policy", "budget", "entries kept",
                "cache MiB", "of full", "perplexity", "ratio", "recall");
  std::string group = comparison.rows.front().prose_request.policy;
  for (const CompareRow& row : comparison.rows) {
    if (row.prose_request.policy != group) out << "\n";
    group = row.prose_request.policy;
    out << format("%-14s %7s %12lld %9.2f %6.1f %% %11.3f %7.3f %8.2f\n", group.c_str(),
                  row.budget.c_str(), static_cast<long long>(row.prose.cache.kept_entries),
                  static_cast<double>(row.prose.cache.bytes) / kMiB, 100 * share(row.prose),
                  row.prose.perplexity(), row.perplexity_ratio, row.recall.perplexity());
  }
  out << format(
      "\nEntries and bytes: all layers and heads at the end of the prose; %% and ratio "
      "against full.\nA budget in %% is that share of the prose, and of the %lld tokens "
      "of the recall run.\n",
      static_cast<long long>(comparison.rows.front().recall.fed + 1));
  for (const std::string& note : comparison.notes) {
    out << "Note: ";
    print_wrapped(out, note, 86, "      ");
  }
  out << format("%.0f s with %d at a time.\n", comparison.seconds, options.workers);
}

void print_table(std::ostream& out, std::span<const SpeedRow> rows, const SpeedOptions& options) {
  const CacheRequest& request = rows.front().request;
  out << format("%s, %s, threads: %d\n\n", request.policy.c_str(), request.kv_type.c_str(),
                request.team->threads());
  out << format("%7s %7s %9s %9s %11s = %11s + %9s + %6s + %6s %9s %8s\n", "context", "budget",
                "prompt/s", "decode/s", "ms a token", "projections", "attention", "policy", "rest",
                "cache MiB", "of full");
  for (const SpeedRow& row : rows) {
    const TokenSeconds& token = row.speed.token;
    const double bytes = static_cast<double>(row.speed.cache.bytes);
    out << format("%7lld %7s %9.1f %9.1f %11.3f = %11.3f + %9.3f + %6.3f + %6.3f %9.2f %6.1f %%\n",
                  static_cast<long long>(row.context),
                  row.request.budget ? std::to_string(*row.request.budget).c_str() : "-",
                  row.prompt_rate(), row.decode_rate(), 1e3 * token.total(),
                  1e3 * token.projections, 1e3 * token.attention, 1e3 * token.policy,
                  1e3 * token.rest, bytes / kMiB,
                  100 * bytes / static_cast<double>(row.speed.full_bytes));
  }
  out << format(
      "\nTokens per second: of the prompt, fed %lld at a time, and of %lld tokens generated after "
      "it.\nThese and milliseconds: their middle half by time, which leaves out what is done only "
      "now and "
      "then.\nBytes: all layers and heads in the end.\n",
      static_cast<long long>(options.chunk), static_cast<long long>(options.tokens));
}

void print_catalogue(std::ostream& out) {
  for (const PolicyInfo& policy : policy_catalogue()) {
    out << format("%-16s", policy.name.c_str());
    print_wrapped(out, policy.keeps, 80, std::string(16, ' '));
    print_parameters(out, policy.parameters);
  }
  out << "every policy\n";
  print_parameters(out, common_parameters());
  out << "\nShown with their defaults; --set name=value changes them.\n";
}

void check_writable(const std::string& path) {
  if (path == "-") return;
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(path, ignored);
  // Appending nothing leaves what is there as it is.
  if (!std::ofstream(path, std::ios::app)) throw std::runtime_error(path + ": cannot be written");
  if (!was_there) std::filesystem::remove(path, ignored);
}

void write_file(const std::string& path, const std::string& content) {
  if (path == "-") {
    std::cout << content << std::flush;
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << content << std::flush;
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace llama
