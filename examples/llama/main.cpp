// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench.hpp"
#include "command.hpp"
#include "compare.hpp"
#include "evaluate.hpp"
#include "generate.hpp"
#include "plot.hpp"
#include "report.hpp"

namespace llama {
namespace {

// What a model says, and a file is called, may be bytes that are no text.
std::string written(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}
void print(const Options& options, const nlohmann::ordered_json& json, const std::string& line) {
  std::cout << (options.has("--json") ? written(json) : line) << "\n";
}

const std::vector<Flag> kGenerateFlags = {
    kModel,
    {"--prompt", "TEXT", "", "what to continue"},
    {"--prompt-file", "FILE", "", "the same, from a file"},
    {"--chat", "", "", "the prompt is a message to a chat model"},
    kPolicy,
    kBudget,
    kSet,
    {"--max-tokens", "N", "128", "how much to generate at most"},
    {"--temperature", "T", "0", "0 takes the likeliest token each time"},
    {"--top-p", "P", "1", "draw from the likeliest tokens with this much probability"},
    {"--seed", "N", "0", "of the random draws"},
    kKvType,
    kDevice,
    kThreads,
    kJson};

void run_generate(const Options& options) {
  if (options.has("--prompt") == options.has("--prompt-file")) {
    throw UsageError("one of --prompt and --prompt-file is needed");
  }
  const Index max_tokens = options.integer("--max-tokens", 1, kMany);
  const Sampling sampling{options.number("--temperature", 0, 100), options.number("--top-p", 0, 1),
                          static_cast<std::uint64_t>(options.integer("--seed", 0, kMany))};
  Engine engine(options);
  const std::string text =
      options.has("--prompt") ? options.text("--prompt") : read_text(options.text("--prompt-file"));
  std::vector<Token> prompt =
      options.has("--chat") ? engine.tokenizer.encode(engine.tokenizer.chat_prompt(text), true)
                            : engine.tokenizer.encode(text, false);
  if (engine.tokenizer.add_bos()) prompt.insert(prompt.begin(), engine.tokenizer.bos());
  if (prompt.empty()) throw UsageError("the prompt is empty");
  const Index prompt_tokens = static_cast<Index>(prompt.size());
  const Index context = prompt_tokens + max_tokens;
  const CacheRequest request = cache_request(options, engine, context);
  Utf8Stream stream;
  std::string output;
  const auto emit = [&](Token token) {
    const std::string piece = stream.push(engine.tokenizer.piece(token));
    output += piece;
    if (!options.has("--json")) std::cout << piece << std::flush;
  };
  const Generation run = generate(engine.model, engine.tokenizer, request, prompt, max_tokens,
                                  sampling, {.team = &engine.team, .exact = false}, emit);
  const std::string rest = stream.flush();
  output += rest;
  if (options.has("--json")) {
    nlohmann::ordered_json json = to_json(request, context, run);
    json["tokens_per_second"] = run.tokens_per_second();
    json["prompt_tokens"] = prompt_tokens;
    json["prompt_seconds"] = run.prompt_seconds;
    json["text"] = output;
    std::cout << written(json) << "\n";
  } else {
    std::cout << rest << std::endl;
    std::cerr << summary(request, run) << "\n";
  }
}

const std::vector<Flag> kPerplexityFlags = {
    kModel,
    kText,
    kPolicy,
    kBudget,
    kSet,
    {"--context", "N", "2048", "tokens to feed"},
    kOffset,
    {"--from", "TOKENS", "0", "count predictions of tokens offset+from+1 .. offset+N"},
    {"--prompt", "P", "", "one compression after P tokens, none thereafter (else: after each)"},
    kKvType,
    kDevice,
    kChunk,
    kThreads,
    kJson};

void run_perplexity(const Options& options) {
  const Index context = options.integer("--context", 1, kMany);
  const Index offset = options.integer("--offset", 0, kMany);
  const Index from = options.integer("--from", 0, context - 1);
  Schedule schedule{.chunk = options.integer("--chunk", 1, kMany)};
  if (options.has("--prompt")) schedule.prompt = options.integer("--prompt", 1, context);
  const std::string content = read_text(options.text("--text"));
  Engine engine(options);
  const CacheRequest request = cache_request(options, engine, context);
  if (find_policy(request.policy).only_after_prompts && !schedule.prompt) {
    std::cerr << "note: " << request.policy
              << " evicts only after a prompt; without --prompt it keeps everything\n";
  }
  const std::vector<Token> text = engine.tokenizer.encode(content, false);
  Progress progress("perplexity", context * engine.model.config().layers);
  const ProseEvaluation run =
      measure_perplexity(engine.model, request, segment(text, offset, context + 1), from, schedule,
                         session_options(engine, progress));
  nlohmann::ordered_json json = to_json(request, context, run);
  json["offset"] = offset;
  json["from"] = from;
  json["perplexity_all"] = std::exp(run.whole_nll);  // with the predictions before `from`
  print(options, json, summary(request, run));
}

const std::vector<Flag> kRecallFlags = {
    kModel,
    kText,
    kPolicy,
    kBudget,
    kSet,
    {"--length", "N", "512", "tokens of the passage; a budget's share is one of the whole run"},
    kOffset,
    kKvType,
    kDevice,
    kChunk,
    kThreads,
    kJson};

void run_recall(const Options& options) {
  const Index length = options.integer("--length", kRecallLead + 1, kMany);
  const Index offset = options.integer("--offset", 0, kMany);
  Schedule schedule{.chunk = options.integer("--chunk", 1, kMany)};
  const std::string content = read_text(options.text("--text"));
  Engine engine(options);
  const std::vector<Token> instruction = engine.tokenizer.encode(kRecallInstruction, false);
  const std::vector<Token> text = engine.tokenizer.encode(content, false);
  const std::vector<Token> stream = recall_stream(segment(text, offset, length), instruction);
  const Index context = static_cast<Index>(stream.size());
  const CacheRequest request = cache_request(options, engine, context);
  if (find_policy(request.policy).only_after_prompts) {
    schedule.prompt = length + static_cast<Index>(instruction.size());
  }
  Progress progress("recall", context * engine.model.config().layers);
  const RecallEvaluation run = measure_recall(engine.model, request, stream, length, schedule,
                                              session_options(engine, progress));
  nlohmann::ordered_json json = to_json(request, context, run);
  json["offset"] = offset;
  json["length"] = length;
  json["first_copy_perplexity"] = std::exp(run.first_copy_nll);
  std::ostringstream line;
  line << summary(request, run) << "; first copy " << std::exp(run.first_copy_nll);
  print(options, json, line.str());
}

const std::vector<Flag> kCompareFlags = {
    kModel,
    kText,
    {"--context", "N", "2048", "tokens of prose"},
    kOffset,
    {"--from", "TOKENS", "0", "prose: count predictions of tokens offset+from+1 and later"},
    {"--recall-length", "N", "", "tokens of the passage to recall (half the context)"},
    {"--budgets", "LIST", "25%,10%", "entries, or shares: of the prose, and of the recall run"},
    {"--policies", "LIST", "all", "names, or all; full is always among them"},
    kSet,
    kKvType,
    kDevice,
    kThreads,
    {"--json", "FILE", "", "write the figures to a file (- is the standard output)"},
    {"--svg", "FILE", "", "draw them to a file"}};

void run_compare(const Options& options) {
  CompareOptions plan;
  plan.context = options.integer("--context", 2, kMany);
  plan.offset = options.integer("--offset", 0, kMany);
  plan.from = options.integer("--from", 0, plan.context - 1);
  plan.recall_length = options.has("--recall-length")
                           ? options.integer("--recall-length", kRecallLead + 1, kMany)
                           : std::max<Index>(plan.context / 2, kRecallLead + 1);
  plan.policies = split_list("--policies", options.text("--policies"));
  plan.settings = parse_settings(options.all("--set"));
  for (const std::string& budget : split_list("--budgets", options.text("--budgets"))) {
    plan.budgets.emplace_back(budget);
  }
  plan.kv_type = options.text("--kv-type");
  plan.device = options.text("--device");
  plan.workers = thread_count(options);
  for (const char* output : {"--json", "--svg"}) {
    if (options.has(output)) check_writable(options.text(output));
  }
  const std::string content = read_text(options.text("--text"));
  const Engine engine(options);
  const Comparison comparison = compare(engine.model, engine.tokenizer.encode(content, false),
                                        engine.tokenizer.encode(kRecallInstruction, false), plan);
  const bool json_to_stdout = options.has("--json") && options.text("--json") == "-";
  if (!json_to_stdout) print_table(std::cout, comparison);
  if (options.has("--json")) {
    write_file(options.text("--json"), written(to_json(comparison)) + "\n");
    if (!json_to_stdout) std::cout << "Figures: " << options.text("--json") << "\n";
  }
  if (options.has("--svg")) {
    write_file(options.text("--svg"), draw_svg(comparison));
    if (!json_to_stdout) std::cout << "Plot: " << options.text("--svg") << "\n";
  }
}

const std::vector<Flag> kBenchFlags = {
    kModel,
    kPolicy,
    kBudget,
    kSet,
    {"--contexts", "LIST", "128,1024,4096,7900", "tokens of the prompts, each a run of its own"},
    {"--tokens", "N", "64", "tokens to generate after each"},
    {"--kv-type", "TYPE", "f16", kKvType.help},
    kDevice,
    {"--chunk", "TOKENS", "512", "of a prompt that are fed at once, one compression after each"},
    kThreads,
    kJson};

void run_bench(const Options& options) {
  std::vector<Index> contexts;
  for (const std::string& text : split_list("--contexts", options.text("--contexts"))) {
    contexts.push_back(whole_number("--contexts", text, 1, kMany));
  }
  SpeedOptions plan{.chunk = options.integer("--chunk", 1, kMany),
                    .tokens = options.integer("--tokens", 1, kMany)};
  Engine engine(options);
  std::vector<SpeedRow> rows;
  Index total = 0;
  for (const Index context : contexts) {
    rows.push_back({context, cache_request(options, engine, context), {}});
    rows.back().request.tokens += plan.tokens;  // a share of the budget refers to the prompt
    total += (context + plan.tokens) * engine.model.config().layers;
  }
  Progress progress("measuring", total);
  plan.session = session_options(engine, progress);
  plan.session.exact = false;
  warm_up(engine.model, rows.front().request, {.team = &engine.team, .exact = false});
  for (SpeedRow& row : rows) {
    plan.context = row.context;
    row.speed = measure_speed(engine.model, row.request, plan);
  }
  if (options.has("--json")) {
    std::cout << written(to_json(rows, plan)) << "\n";
  } else {
    print_table(std::cout, rows, plan);
  }
}

const std::vector<Flag> kPoliciesFlags = {kJson};

void run_policies(const Options& options) {
  if (options.has("--json")) {
    std::cout << written(catalogue_json()) << "\n";
  } else {
    print_catalogue(std::cout);
  }
}

struct Command {
  const char* name;
  const char* purpose;
  const std::vector<Flag>& flags;
  void (*run)(const Options&);
};

const std::array<Command, 6> kCommands = {{
    {"generate", "continue a prompt", kGenerateFlags, run_generate},
    {"perplexity", "how well a text is predicted with a compressed cache", kPerplexityFlags,
     run_perplexity},
    {"recall", "how well a passage is repeated from a compressed cache", kRecallFlags, run_recall},
    {"compare", "perplexity, recall, entries and bytes of many policies and budgets", kCompareFlags,
     run_compare},
    {"bench", "speed of prompts and of generation, and where the time goes", kBenchFlags,
     run_bench},
    {"policies", "the policies and their parameters", kPoliciesFlags, run_policies},
}};

void print_help(const Command* command) {
  if (command != nullptr) {
    std::cout << "tersekv-llama " << command->name << ": " << command->purpose << "\n\n"
              << describe(command->flags);
    return;
  }
  std::cout << "tersekv-llama: a small Llama engine whose KV cache is TerseKV's\n\n";
  for (const Command& each : kCommands) std::printf("  %-12s %s\n", each.name, each.purpose);
  std::cout << "\ntersekv-llama COMMAND --help lists a command's flags.\n";
}

bool is_help(const std::string& argument) { return argument == "--help" || argument == "-h"; }

void run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) throw UsageError("a command is needed (see: tersekv-llama --help)");
  if (is_help(arguments.front())) return print_help(nullptr);
  const auto command = std::ranges::find_if(
      kCommands, [&](const Command& each) { return arguments.front() == each.name; });
  if (command == kCommands.end()) {
    throw UsageError("no command '" + arguments.front() + "' (see: tersekv-llama --help)");
  }
  if (std::any_of(arguments.begin() + 1, arguments.end(), is_help)) return print_help(command);
  try {
    command->run(Options(command->flags, {arguments.data() + 1, arguments.size() - 1}));
  } catch (const UsageError& error) {
    throw UsageError(std::string(error.what()) + " (see: tersekv-llama " + command->name +
                     " --help)");
  }
}

}  // namespace
}  // namespace llama

int main(int argc, char** argv) {
  try {
    llama::run({argv + 1, argv + argc});
    std::cout.flush();
    return std::cout ? 0 : 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "tersekv-llama: out of memory\n";
  } catch (const std::exception& error) {
    std::cerr << "tersekv-llama: " << error.what() << "\n";
  }
  return 2;
}
