// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/graph.hpp"
#include "cuda/small_cache.hpp"
#include "support/sanitized.hpp"
#include "tersekv/tersekv.hpp"

// Policies that have a stream of their own for a step's part that no output waits for.
//
// For the thread sanitizer, which looks into blocks, one test is enough: the others launch the
// kernels of other files' tests.

using namespace tersekv;
using on_device::Array;
using on_device::Graph;
using on_device::kHeads;
using on_device::small_config;
using on_device::small_tokens;
using on_device::SmallCache;
using on_device::Tokens;
using support::Random;

namespace {

constexpr Index kPage = 64;  // entries

#if defined(__CUDACC__)
/// Some stream beside the default one, which waits for nobody.
class PolicyStream {
 public:
  PolicyStream() {
    tersekv::cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  }
  PolicyStream(const PolicyStream&) = delete;
  PolicyStream& operator=(const PolicyStream&) = delete;
  ~PolicyStream() { cudaStreamDestroy(stream_); }
  on_device::Runtime::Stream get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};
#else
struct PolicyStream {
  on_device::Runtime::Stream get() const { return on_device::Runtime::kLateStream; }
};
#endif

/// Layers on one pool, that take workspaces in turns.
template <class Policy>
struct Layers {
  tersekv::cuda::BasicPagePool<on_device::Runtime> pool;
  std::vector<tersekv::cuda::BasicWorkspace<on_device::Runtime>> workspaces;
  std::vector<SmallCache<Policy>> caches;

  Layers(Index layers, std::size_t num_workspaces, Index pages, Index budget,
         std::optional<on_device::Runtime::Stream> policies)
      : pool(pages), workspaces(num_workspaces) {
    CacheConfig config = small_config(2, budget);
    caches.reserve(static_cast<std::size_t>(layers));
    for (config.layer = 0; config.layer < layers; ++config.layer) {
      caches.emplace_back(
          config, Policy{},
          tersekv::cuda::DeviceOptions{.max_chunk = 90, .max_length = 200, .tuning = {.splits = 2}},
          pool, workspaces[static_cast<std::size_t>(config.layer) % num_workspaces]);
    }
    for (auto& workspace : workspaces) workspace.run_policies_on(policies);
  }
  std::vector<std::vector<float>> extend(const Tokens& tokens, tersekv::cuda::Sequences sequences,
                                         ExtendOptions how = {}) {
    std::vector<std::vector<float>> outs;
    for (auto& cache : caches) {
      cache.extend(tokens.batch(sequences), how);
      outs.push_back(tokens.out());
    }
    return outs;
  }
  void wait(on_device::Runtime::Stream stream = {}) {
    for (auto& workspace : workspaces) workspace.wait(stream);
  }
};

Chunk<float> chunk_of(const Tokens& tokens, Index sequence) {
  const auto batch = tokens.batch(sequence);
  Chunk<float> chunk;
  chunk.sequence = sequence;
  chunk.q = batch.q;
  chunk.k = batch.k;
  chunk.v = batch.v;
  chunk.out = batch.out;
  return chunk;
}

/// With where MorphKV is in its window, which entries do not show.
template <class Policy>
void same_state(SmallCache<Policy>& a, SmallCache<Policy>& b) {
  on_device::same_bits(a, b);
  if constexpr (std::is_same_v<Policy, MorphKV>) {
    const auto host_a = a.synchronize_to_host(), host_b = b.synchronize_to_host();
    for (Index s = 0; s < 2; ++s) {
      for (Index h = 0; h < kHeads; ++h)
        CHECK(host_a.head(s, h).reg(0) == host_b.head(s, h).reg(0));
    }
  }
}

/// Prompts and steps of three layers, of one sequence alone and of both, against the policy on the
/// stream of the call.
template <class Policy>
void check(std::size_t workspaces, Index budget) {
  CAPTURE(workspaces, budget);
  const PolicyStream apart;
  Layers<Policy> plain(3, 1, 40, budget, std::nullopt),
      layers(3, workspaces, 40, budget, apart.get());
  Random random(3);
  std::vector<std::array<std::vector<float>, 2>> outs;
  const auto extend = [&](tersekv::cuda::Sequences sequences, Index rows) {
    const Tokens tokens = small_tokens(random, rows);
    const auto want = plain.extend(tokens, sequences);
    REQUIRE(layers.extend(tokens, sequences) == want);
  };
  for (Index s = 0; s < 2; ++s) extend(s, 50 + 20 * s);
  for (int step = 0; step < 6; ++step) extend({0, 2}, 2);
  extend(1, 1);
  extend(0, 5);  // and a prompt right after a step
  extend({0, 2}, 2);
  const Tokens one = small_tokens(random, 1), prompt = small_tokens(random, 3);
  for (auto* some : {&plain, &layers}) {  // a step and a prompt in one call
    for (auto& cache : some->caches) {
      const std::array chunks{chunk_of(one, 1), chunk_of(prompt, 0)};
      cache.extend(std::span<const Chunk<float>>(chunks));
    }
    outs.push_back({one.out(), prompt.out()});
  }
  CHECK(outs.front() == outs.back());
  for (std::size_t i = 0; i < 3; ++i) same_state<Policy>(plain.caches[i], layers.caches[i]);
}

/// A call right after a step whose policy is on a stream of its own finds what it did.
template <class Policy, class Call>
void check_call(ExtendOptions how, const Call& call) {
  const PolicyStream apart;
  Layers<Policy> plain(1, 1, 20, 40, std::nullopt), layer(1, 1, 20, 40, apart.get());
  for (auto* one : {&plain, &layer}) {
    Random random(4);
    for (Index s = 0; s < 2; ++s) one->extend(small_tokens(random, 45), s);
    one->extend(small_tokens(random, 2), {0, 2}, how);
    call(one->caches.front(), small_tokens(random, 1));
  }
  same_state<Policy>(plain.caches.front(), layer.caches.front());
}

}  // namespace

TEST_CASE("device: a policy on a stream of its own does what it does on the call's, bit for bit",
          "[small]") {
  on_device::require_device();
  if (support::kThreadSanitizer) return;
  check<ZSMerge>(2, 40);
}

TEST_CASE("device: all policies do so on a stream of their own, whatever the workspaces") {
  on_device::require_device();
  if (support::kThreadSanitizer) return;
  check<MorphKV>(3, 40);
  if (support::kAddressSanitizer) return;  // a minute; one policy's launches are all policies'
  check<ZSMerge>(1, 64);
  check<StreamingLLM>(2, 40);
  check<H2O>(2, 64);
  check<KeepKV>(2, 40);
  check<Full>(2, kUnlimited);
}

TEST_CASE("device: calls wait for a policy on a stream of its own") {
  on_device::require_device();
  if (support::kThreadSanitizer) return;
  const ExtendOptions compressed = {}, observed{.compress_every = kNever};
  check_call<H2O>(compressed, [](auto& cache, const Tokens& token) {
    const auto batch = token.batch(0);
    cache.template append<const float>(0, batch.k, batch.v);
  });
  check_call<H2O>(compressed, [](auto& cache, const Tokens& token) {
    cache.observe(tersekv::cuda::Sequences(0), TokenView<const float>(token.batch(0).q));
  });
  check_call<H2O>(observed, [](auto& cache, const Tokens&) { cache.compress({0, 2}); });
  check_call<H2O>(observed, [](auto& cache, const Tokens&) { cache.rewind({0, 2}, 1); });
  check_call<H2O>(compressed, [](auto& cache, const Tokens&) { cache.copy(0, 1); });
  check_call<MorphKV>(compressed, [](auto& cache, const Tokens&) { cache.clear(1); });
  check_call<H2O>(compressed, [](auto& cache, const Tokens&) { cache.synchronize(); });
  check_call<H2O>(observed, [](auto& cache, const Tokens&) {
    const Array<float> rows(kHeads * 64, 0.5f);
    cache.observe(0, AttentionRows<const float>{rows.data(), 1, kHeads * 64, 64});
  });
  std::vector<std::vector<float>> outs;
  check_call<H2O>(compressed, [&](auto& cache, const Tokens& token) {
    const auto batch = token.batch(0);
    cache.template attend<float>(0, batch.q, batch.out);
    outs.push_back(token.out());
  });
  CHECK(outs.front() == outs.back());
}

TEST_CASE("device: whatever stream policies get next, calls wait for what they still do",
          "[small]") {
  on_device::require_device();
  const PolicyStream apart;
  using Stream = std::optional<on_device::Runtime::Stream>;
  const std::vector<std::vector<Stream>> changes = {
      {Stream(on_device::Runtime::Stream{}), Stream(apart.get())},
      {std::nullopt, Stream(apart.get())},
      {std::nullopt},
      {Stream(on_device::Runtime::Stream{})}};
  for (const auto& streams : changes) {
    Layers<H2O> plain(1, 1, 20, 40, std::nullopt), layer(1, 1, 20, 40, apart.get());
    for (auto* one : {&plain, &layer}) {
      Random random(4);
      for (Index s = 0; s < 2; ++s) one->extend(small_tokens(random, 45), s);
      one->extend(small_tokens(random, 2), {0, 2});
      auto& workspace = one->workspaces.front();
      if (one == &layer) {
        for (const Stream& stream : streams) workspace.run_policies_on(stream);
      }
      if (streams.size() == 1) {  // the workspace grows, and gives back what it had
        const SmallCache<H2O> longer(small_config(2, 200), {}, {.max_chunk = 90, .max_length = 500},
                                     one->pool, workspace);
      }
      one->extend(small_tokens(random, 2), {0, 2});
    }
    same_state<H2O>(plain.caches.front(), layer.caches.front());
  }
}

TEST_CASE("device: steps with policies on a stream of their own replay from a graph") {
  on_device::require_device();
  if (support::kThreadSanitizer) return;
  const PolicyStream apart;
  Layers<H2O> plain(3, 1, 40, 40, std::nullopt), layers(3, 2, 40, 40, apart.get());
  Random random(5);
  for (Index s = 0; s < 2; ++s) {
    const Tokens prompt = small_tokens(random, 35);  // the budget is reached by replays
    plain.extend(prompt, s);
    layers.extend(prompt, s);
  }
  const Tokens token = small_tokens(random, 2);
  layers.wait();
  Graph step([&](auto stream) {
    for (auto& cache : layers.caches) cache.extend(token.batch({0, 2}), {}, stream);
    layers.wait(stream);
  });
  for (int i = 0; i < 12; ++i) {
    step.replay();
    const std::vector<float> got = token.out();
    CHECK(plain.extend(token, {0, 2}).back() == got);
  }
  for (std::size_t i = 0; i < 3; ++i) same_state<H2O>(plain.caches[i], layers.caches[i]);
}

TEST_CASE("device: heads keep a page in steps whose policy is on a stream of its own", "[small]") {
  on_device::require_device();
  const PolicyStream apart;
  // A budget of a page: with each step's token heads have two.
  Layers<H2O> layers(1, 1, 8, kPage, apart.get());
  auto& cache = layers.caches.front();
  Random random(6);
  for (Index s = 0; s < 2; ++s) layers.extend(small_tokens(random, kPage), s);
  CHECK(layers.pool.synchronize_idle_pages() == 4);
  cache.synchronize();
  const Index before = cache.memory().total();
  for (int step = 0; step < 3; ++step) {
    layers.extend(small_tokens(random, 2), {0, 2});
    cache.synchronize();
    CHECK(cache.length(0, 0) == kPage);
    CHECK(layers.pool.synchronize_idle_pages() == 0);  // none of them taken twice
  }
  CHECK(cache.memory().total() == before + 4 * layers.pool.page_bytes());
  cache.compress(0);
  cache.synchronize();
  CHECK(layers.pool.synchronize_idle_pages() == 2);
  CHECK(cache.memory().total() == before + 2 * layers.pool.page_bytes());
  layers.workspaces.front().run_policies_on(std::nullopt);
  layers.extend(small_tokens(random, 1), 1);
  CHECK(layers.pool.synchronize_idle_pages() == 4);
  // What a prompt leaves goes back, though a step is what compresses it.
  layers.workspaces.front().run_policies_on(apart.get());
  for (Index s = 0; s < 2; ++s) {
    layers.extend(small_tokens(random, 60), s, {.compress_every = kNever});
  }
  CHECK(layers.pool.synchronize_idle_pages() == 0);
  layers.extend(small_tokens(random, 2), {0, 2});
  CHECK(layers.pool.synchronize_idle_pages() == 4);
  cache.clear({0, 2});
  CHECK(layers.pool.synchronize_idle_pages() == 8);
}
