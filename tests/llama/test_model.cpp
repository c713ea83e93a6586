// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "model.hpp"
#include "slow_model.hpp"
#include "tiny_model.hpp"

namespace {

using llama::Index;
using llama::Token;
using llama_test::SlowModel;
using llama_test::TinyModel;
using Row = std::vector<double>;

const TinyModel kQuantised{.embedding = 32,
                           .head_dim = 16,
                           .feed_forward = 64,
                           .rotated = 16,
                           .quantised = true,
                           .seed = 9};

std::vector<Token> random_tokens(std::size_t count, std::uint32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<Token> draw(0, static_cast<Token>(vocab) - 1);
  std::vector<Token> tokens(count);
  std::ranges::generate(tokens, [&] { return draw(random); });
  return tokens;
}

// Logits of every token, fed in pieces of `chunk`.
llama::Matrix run(const llama::Model& model, const llama::CacheRequest& request,
                  std::span<const Token> tokens, Index chunk, llama::SessionOptions options = {}) {
  const auto caches = llama::make_caches(request);
  llama::Session session(model, *caches, std::move(options));
  llama::Matrix logits(static_cast<Index>(tokens.size()), model.config().vocab_size);
  for (Index first = 0; first < logits.rows(); first += chunk) {
    const Index count = std::min(chunk, logits.rows() - first);
    logits.middleRows(first, count) = session.logits(session.feed(tokens.subspan(first, count), 1));
  }
  return logits;
}

double largest_difference(const llama::Matrix& a, const llama::Matrix& b) {
  return (a - b).cwiseAbs().maxCoeff();
}

void check_against_slow(TinyModel tiny) {
  const std::vector<std::byte> bytes = tiny.build();
  const llama::GgufFile file(bytes, "tiny");
  const llama::Model model(file);
  const std::vector<Token> tokens = random_tokens(23, tiny.vocab, tiny.seed);
  SlowModel slow(tiny);
  llama::Matrix expected(static_cast<Index>(tokens.size()), tiny.vocab);
  for (Index t = 0; t < expected.rows(); ++t) {
    const Row row = slow.next(tokens[t]);
    for (Index i = 0; i < expected.cols(); ++i) expected(t, i) = static_cast<float>(row[i]);
  }
  const llama::CacheRequest request{.shape = model.cache_shape()};
  const double size = expected.cwiseAbs().maxCoeff();
  for (const Index chunk : {Index{23}, Index{7}, Index{1}}) {
    INFO("chunks of " << chunk);
    CHECK(largest_difference(run(model, request, tokens, chunk), expected) < 2e-5 * size);
  }
}

}  // namespace

TEST_CASE("the model computes what its definition says") {
  SECTION("grouped queries, output matrix of its own") { check_against_slow({}); }
  SECTION("output tied to the embedding") { check_against_slow({.tied = true, .seed = 2}); }
  SECTION("every query head with keys of its own") {
    check_against_slow({.kv_heads = 6, .seed = 3});
  }
  SECTION("one KV head for all") { check_against_slow({.kv_heads = 1, .seed = 4}); }
  SECTION("only the first dimensions of a head turn") {
    check_against_slow({.head_dim = 6, .rotated = 2, .seed = 5});
  }
  SECTION("quantised weights") { check_against_slow(kQuantised); }
  SECTION("positions scaled, frequencies stretched") {
    check_against_slow({.rope_scale = 2.5f, .stretched = true, .seed = 6});
  }
}

TEST_CASE("the check of the model notices a wrong one") {
  TinyModel tiny;
  const std::vector<std::byte> bytes = tiny.build();
  const llama::GgufFile file(bytes, "tiny");
  const llama::Model model(file);
  const std::vector<Token> tokens = random_tokens(2, tiny.vocab, 1);
  const llama::Matrix logits = run(model, {.shape = model.cache_shape()}, tokens, 1);
  tiny.rope_base = 101;  // far less than any mistake would change
  SlowModel slow(tiny);
  slow.next(tokens[0]);
  const Row row = slow.next(tokens[1]);
  double difference = 0;
  for (Index i = 0; i < logits.cols(); ++i) {
    difference = std::max(difference, std::abs(logits(1, i) - row[i]));
  }
  CHECK(difference > 1e-4);
}

TEST_CASE("every policy gives the same logits whatever the chunks") {
  TinyModel tiny;
  const std::vector<std::byte> bytes = tiny.build();
  const llama::GgufFile file(bytes, "tiny");
  const llama::Model model(file);
  const std::vector<Token> tokens = random_tokens(90, tiny.vocab, 7);
  for (const llama::PolicyInfo& policy : llama::policy_catalogue()) {
    if (!policy.needs_setting.empty()) continue;
    for (const char* kv_type : {"f32", "f16", "bf16"}) {
      INFO(policy.name << " " << kv_type);
      const llama::CacheRequest request{
          .policy = policy.name, .budget = 40, .kv_type = kv_type, .shape = model.cache_shape()};
      const llama::Matrix one_by_one = run(model, request, tokens, 1);
      // Matrix products round differently, and storage to 16 bits turns a rounding into a step.
      const double tolerance = std::string(kv_type) == "f32" ? 1e-4 : 2e-2;
      CHECK(largest_difference(run(model, request, tokens, 90), one_by_one) < tolerance);
      CHECK(largest_difference(run(model, request, tokens, 13), one_by_one) < tolerance);
    }
  }
}

TEST_CASE("activations rounded to 16 bits come close, and are rounded") {
  TinyModel tiny = kQuantised;
  const std::vector<std::byte> bytes = tiny.build();
  const llama::GgufFile file(bytes, "tiny");
  const llama::Model model(file);
  const std::vector<Token> tokens = random_tokens(20, tiny.vocab, 8);
  const llama::CacheRequest request{.shape = model.cache_shape()};
  const llama::Matrix exact = run(model, request, tokens, 1);
  const llama::Matrix fast = run(model, request, tokens, 1, {.exact = false});
  const double size = exact.cwiseAbs().maxCoeff();
  CHECK(largest_difference(exact, fast) < 1e-3 * size);
  CHECK(largest_difference(exact, fast) > 1e-6 * size);
  CHECK(largest_difference(exact, run(model, request, tokens, 7, {.exact = false})) < 1e-3 * size);
}

TEST_CASE("logits have the same bits whatever the number of threads") {
  // Rows of 20 elements, so that few of them are aligned; sums that Eigen takes in several runs, of
  // which a plan for several threads would make others.
  const TinyModel wide{.vocab = 301, .embedding = 352, .layers = 1, .feed_forward = 1300};
  for (TinyModel tiny : {TinyModel{}, kQuantised, wide}) {
    const std::vector<std::byte> bytes = tiny.build();
    const llama::GgufFile file(bytes, "tiny");
    const llama::Model model(file);
    const std::vector<Token> tokens = random_tokens(20, tiny.vocab, 8);
    for (const Index chunk : {Index{1}, Index{7}}) {
      for (const bool exact : {false, true}) {
        CAPTURE(tiny.embedding, tiny.quantised, chunk, exact);
        llama::CacheRequest request{.shape = model.cache_shape()};
        const llama::Matrix expected = run(model, request, tokens, chunk, {.exact = exact});
        for (const int threads : {2, 3}) {
          llama::Team team(threads);
          request.team = &team;
          CHECK(run(model, request, tokens, chunk, {.team = &team, .exact = exact}) == expected);
        }
      }
    }
  }
}

TEST_CASE("linear RoPE scaling goes by its factor, whether the file names the kind or not") {
  const auto logits = [](TinyModel tiny) {
    const std::vector<std::byte> bytes = tiny.build();
    const llama::GgufFile file(bytes, "tiny");
    const llama::Model model(file);
    const std::vector<Token> tokens = random_tokens(20, tiny.vocab, 8);
    return run(model, {.shape = model.cache_shape()}, tokens, 20);
  };
  const llama::Matrix expected = logits({.rope_scale = 4.0f});
  CHECK(logits({.rope_scale = 4.0f, .names_scaling = false}) == expected);
  CHECK(logits({.rope_scale = 4.0f,
                .rope_scale_key = "llama.rope.scale_linear",
                .names_scaling = false}) == expected);
  CHECK(logits({}) != expected);
}

TEST_CASE("models that cannot be run are refused") {
  const auto load = [](const std::vector<std::byte>& bytes) {
    const llama::GgufFile file(bytes, "tiny");
    llama::Model model(file);
  };
  using Catch::Matchers::ContainsSubstring;
  SECTION("another architecture") {
    llama_test::GgufBuilder builder;
    builder.text("general.architecture", "mamba");
    CHECK_THROWS_WITH(load(builder.build()), ContainsSubstring("mamba"));
  }
  SECTION("another architecture, of a name that is no text") {
    llama_test::GgufBuilder builder;
    builder.text("general.architecture", "mam\n\033ba");
    CHECK_THROWS_WITH(load(builder.build()), ContainsSubstring("'mam??ba'"));
  }
  SECTION("a dimension that is missing") {
    llama_test::GgufBuilder builder;
    builder.text("general.architecture", "llama");
    CHECK_THROWS_WITH(load(builder.build()),
                      ContainsSubstring("'llama.embedding_length' is missing"));
  }
  SECTION("heads that do not divide") {
    TinyModel tiny{.kv_heads = 4};
    CHECK_THROWS_WITH(load(tiny.build()), ContainsSubstring("6 query heads"));
  }
  SECTION("an odd number of rotated dimensions") {
    TinyModel tiny{.rotated = 3};
    CHECK_THROWS_WITH(load(tiny.build()), ContainsSubstring("RoPE"));
  }
  SECTION("dimensions beyond all bounds") {
    TinyModel tiny{.layers = 0};
    CHECK_THROWS_WITH(load(tiny.build()), ContainsSubstring("block_count"));
  }
  SECTION("biases, which would be left out") {
    CHECK_THROWS_WITH(load(TinyModel{.biased = true}.build()), ContainsSubstring("attn_k.bias"));
  }
  SECTION("a tensor that is missing") {
    TinyModel tiny;
    const std::vector<std::byte> bytes = tiny.build();
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.replace(text.find("blk.1.ffn_up"), 12, "blk.1.ffn_xx");
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    CHECK_THROWS_WITH(load({begin, begin + text.size()}), ContainsSubstring("blk.1.ffn_up.weight"));
  }
  SECTION("a token outside the vocabulary") {
    TinyModel tiny;
    const std::vector<std::byte> bytes = tiny.build();
    const llama::GgufFile file(bytes, "tiny");
    const llama::Model model(file);
    const std::vector<Token> tokens = {29};
    CHECK_THROWS_WITH(run(model, {.shape = model.cache_shape()}, tokens, 1),
                      ContainsSubstring("token 29"));
  }
}
