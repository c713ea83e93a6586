// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <span>
#include <string>

#include "bench.hpp"
#include "compare.hpp"
#include "generate.hpp"

namespace llama {

/// What every command reports about a run, by the names that the documentation gives.
nlohmann::ordered_json to_json(const CacheRequest& request, Index context, const Evaluation& run);
nlohmann::ordered_json to_json(const Comparison& comparison);
nlohmann::ordered_json to_json(std::span<const SpeedRow> rows, const SpeedOptions& options);
/// The policy catalogue.
nlohmann::ordered_json catalogue_json();

/// One line for people: "perplexity 14.47 over 3072 tokens, ...".
std::string summary(const CacheRequest& request, const Evaluation& run);
void print_table(std::ostream& out, const Comparison& comparison);
void print_table(std::ostream& out, std::span<const SpeedRow> rows, const SpeedOptions& options);
void print_catalogue(std::ostream& out);

/// Throws std::runtime_error where write_file() would, before the work is done.
void check_writable(const std::string& path);
/// Writes the whole of `content` or throws std::runtime_error; "-" is the standard output.
void write_file(const std::string& path, const std::string& content);

}  // namespace llama
