// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "caches.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "team.hpp"
#include "tokenizer.hpp"

// What commands share: the flags that mean the same for all of them, and what is made of these.
namespace llama {

inline constexpr Index kMany = Index{1} << 40;  ///< a limit for counts that have no real one

inline constexpr Flag kModel{"--model", "FILE", "",
                             "the model, a GGUF file of the llama architecture"};
inline constexpr Flag kText{"--text", "FILE", "", "the text, plain UTF-8"};
inline constexpr Flag kPolicy{"--policy", "NAME", "full", "who stays in the cache (see: policies)"};
inline constexpr Flag kBudget{"--budget", "B", "",
                              "entries per KV head (410) or a share of the context (10%)"};
inline constexpr Flag kSet{"--set", "NAME=VALUE", "", "a parameter of the policy; may be repeated",
                           true};
inline constexpr Flag kKvType{"--kv-type", "TYPE", "f32",
                              "how keys and values are stored: f32, f16, bf16, int8"};
inline constexpr Flag kDevice{"--device", "NAME", "cpu",
                              "where the caches are, and attend: cpu, cuda"};
inline constexpr Flag kThreads{"--threads", "N", "", "threads (all cores)"};
inline constexpr Flag kJson{"--json", "", "", "print one JSON object instead of text"};
inline constexpr Flag kOffset{"--offset", "TOKENS", "0", "where in the text to begin"};
inline constexpr Flag kChunk{"--chunk", "TOKENS", "1024",
                             "tokens fed at once; changes speed, not results"};

/// What commands that run a model share.
struct Engine {
  /// Reads --model and --threads.
  explicit Engine(const Options& options);

  GgufFile file;
  Model model;
  Tokenizer tokenizer;
  Team team;
};

int thread_count(const Options& options);

/// The whole file. Throws std::runtime_error where it cannot be read.
std::string read_text(const std::string& path);

/// The cache that a command's flags ask for; refuses what cannot run. `context`: the tokens that
/// will be fed, at most; a share of the budget refers to them.
CacheRequest cache_request(const Options& options, Engine& engine, Index context);

/// Exact products, on the engine's threads.
SessionOptions session_options(Engine& engine, Progress& progress);

}  // namespace llama
