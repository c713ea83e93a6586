// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace llama {

Engine::Engine(const Options& options)
    : file(options.text("--model")), model(file), tokenizer(file), team(thread_count(options)) {
  if (tokenizer.vocab_size() > model.config().vocab_size) {
    throw std::runtime_error(file.name() + ": the tokenizer has " +
                             std::to_string(tokenizer.vocab_size()) + " tokens, the model only " +
                             std::to_string(model.config().vocab_size));
  }
}

int thread_count(const Options& options) {
  if (options.has("--threads")) return static_cast<int>(options.integer("--threads", 1, 1024));
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw std::runtime_error(path + ": cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

CacheRequest cache_request(const Options& options, Engine& engine, Index context) {
  CacheRequest request{.policy = options.text("--policy"),
                       .settings = parse_settings(options.all("--set")),
                       .kv_type = options.text("--kv-type"),
                       .shape = engine.model.cache_shape(),
                       .team = &engine.team,
                       .device = options.text("--device"),
                       .tokens = context};
  const PolicyInfo& policy = find_policy(request.policy);
  if (policy.needs_budget) {
    if (!options.has("--budget")) throw UsageError(policy.name + " needs a --budget");
    request.budget = BudgetSpec(options.text("--budget")).entries(context);
  } else if (options.has("--budget")) {
    BudgetSpec(options.text("--budget"));  // has no effect, but should not be nonsense
  }
  make_caches(request);  // refuse what cannot run before any work is done
  return request;
}

SessionOptions session_options(Engine& engine, Progress& progress) {
  return {.team = &engine.team,
          .on_layer = [&progress](Index tokens) { progress.advance(tokens); }};
}

}  // namespace llama
