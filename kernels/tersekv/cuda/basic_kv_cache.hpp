// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "tersekv/checks.hpp"
#include "tersekv/chunks_apart.hpp"
#include "tersekv/cuda/batch.hpp"
#include "tersekv/cuda/cache_launches.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/footprint.hpp"
#include "tersekv/kv_cache.hpp"

namespace tersekv::cuda {

/// The compressed KV cache of one attention layer in device memory: `tersekv::KVCache` with the
/// same policies, verbs and meanings, views of device memory, and a stream for every call.
///
/// All calls are asynchronous, allocate nothing and can be captured in a CUDA graph, but for the
/// constructors and destructor, and for those whose names begin with `synchronize`. A replayed
/// graph takes one more step from where the cache then is, whatever its lengths are.
///
/// No output waits for the policy's part of a decode step, which may have a stream of its own:
/// `BasicWorkspace::run_policies_on`.
///
/// The host knows upper bounds of lengths, not lengths: `length`, `counts`, `keep_ratio` and
/// `memory` answer as of the last `synchronize`. Of replayed graphs it knows nothing until then, so
/// `synchronize` comes after them before `rewind`, before `attend` and `observe` of several tokens,
/// and before rows of attention are taken or given. A capture counts as a step, and a captured
/// `rewind` takes as many tokens each time.
///
/// Bad arguments throw std::invalid_argument or std::length_error before anything is launched and
/// change nothing; values are not looked at (the CPU's cache refuses NaN). Error: a launch failed,
/// in the call that made it. OutOfPages: a head found no page in a shared pool, in the first call
/// that can know, of whatever cache on that pool.
///
/// `Runtime` is the device: `CudaRuntime` (`tersekv::cuda::KVCache`), or the host in the tests.
template <class PolicyType, Element KeyCodec, Element ValueCodec, class Runtime, class Dims>
class BasicKVCache {
  static_assert(CachePolicy<PolicyType>,
                "KVCache: the first template argument must satisfy tersekv::CachePolicy");
  static_assert(
      tersekv::detail::kObservesAsSaid<PolicyType>,
      "KVCache: the policy says what it `observes`, but has no observe(team, head, row) of "
      "its own");
  static_assert(std::is_trivially_copyable_v<PolicyType>,
                "a policy travels to the device as it is");

 public:
  using Stream = typename Runtime::Stream;
  using Pool = BasicPagePool<Runtime>;
  using Workspace = BasicWorkspace<Runtime>;
  using HostCache = tersekv::KVCache<PolicyType, KeyCodec, ValueCodec>;

  /// With a pool of its own, that has pages for all heads, and a workspace of its own.
  /// Synchronises.
  explicit BasicKVCache(const CacheConfig& config, PolicyType policy = {},
                        const DeviceOptions& options = {}, Stream stream = {})
      : BasicKVCache(config, std::move(policy), options, nullptr, nullptr, stream) {}
  /// With the pages of `pool` and the rows of `workspace`, which outlive it: layers share them. The
  /// pool may have fewer pages than all heads could need at once.
  BasicKVCache(const CacheConfig& config, PolicyType policy, const DeviceOptions& options,
               Pool& pool, Workspace& workspace, Stream stream = {})
      : BasicKVCache(config, std::move(policy), options, &pool, &workspace, stream) {}

  BasicKVCache(BasicKVCache&&) = default;
  BasicKVCache& operator=(BasicKVCache&&) = delete;

  /// Appends the tokens, attends causally, lets the policy observe, and compresses.
  template <Element T>
  void extend(const Batch<T>& batch, ExtendOptions options = {}, Stream stream = {}) {
    const Index rows = check_extend(batch, options);
    begin(stream);
    launches_.extend(batch, rows, options, stream);
  }
  /// Of different sequences, any number of tokens each: a launch after the other.
  template <Element T>
  void extend(std::span<const Chunk<T>> chunks, ExtendOptions options = {}, Stream stream = {}) {
    for (const Chunk<T>& chunk : chunks) check_extend(Batch<T>(chunk), options);
    detail::check_chunks_apart(detail::ChunkList(chunks));
    begin(stream);
    for (const Chunk<T>& chunk : chunks) {
      workspace_->wait(stream);  // the chunk before may be a decode step
      launches_.extend(Batch<T>(chunk), chunk.k.tokens, options, stream);
    }
  }
  /// Of one sequence.
  template <Element T>
  void extend(const Chunk<T>& chunk, ExtendOptions options = {}, Stream stream = {}) {
    extend(Batch<T>(chunk), options, stream);
  }
  /// Of sequence 0.
  template <Element T>
  void extend(std::type_identity_t<TokenView<const T>> q,
              std::type_identity_t<TokenView<const T>> k,
              std::type_identity_t<TokenView<const T>> v, TokenView<T> out,
              ExtendOptions options = {}, Stream stream = {}) {
    extend(Batch<T>(0, q, k, v, out), options, stream);
  }

  /// Appends tokens, as many to each sequence, without attention.
  template <class T>
  void append(Sequences sequences, TokenView<T> k,
              std::type_identity_t<TokenView<const std::remove_const_t<T>>> v,
              ScoreView token_scores = {},
              Stream stream = {}) requires Element<std::remove_const_t<T>> {
    Batch<std::remove_const_t<T>> batch;
    batch.sequences = sequences;
    batch.k = k;
    batch.v = v;
    batch.token_scores = token_scores;
    const Index rows = check_tokens(batch);
    check_room(sequences, rows, rows);
    begin(stream);
    launches_.append(batch, 0, rows, stream);
  }

  /// Attention of the last tokens of each sequence, each to the entries up to itself. `out` may be
  /// null; so may outputs.rows, which are of one sequence, `longest` numbers for each head: a graph
  /// that was captured with them writes no more, however long the head then is.
  template <Element T>
  void attend(Sequences sequences, std::type_identity_t<TokenView<const T>> q, TokenView<T> out,
              AttendOutputs outputs = {}, Stream stream = {}) {
    const Index rows = check_queries(sequences, q);
    if (out.data != nullptr) {
      detail::check_extents("out", out, q.tokens, config_.num_q_heads, config_.head_dim);
      detail::check_output(q, {}, {}, out);
    }
    const auto lse = detail::lse_footprint(outputs.lse, q.tokens, config_.num_q_heads);
    detail::check_beside("lse", lse, {q, out});
    Index row_entries = 0;
    if (outputs.rows.data != nullptr) {
      row_entries = launches_.longest(sequences);
      detail::require_equal("sequences, with rows", sequences.count, 1);
      detail::require_equal("rows", outputs.rows.rows, rows);
      detail::check_beside(
          "rows", detail::check_row_strides(outputs.rows, config_.num_kv_heads, row_entries),
          {q, out, lse});
    }
    begin(stream);
    auto work = launches_.work_on(sequences, q, rows, rows);
    work.attention.out = out;
    work.attention.lse = outputs.lse;
    work.rows_out = outputs.rows;
    work.row_entries = row_entries;
    launches_.attend(work, 0, rows, stream);
  }

  /// Shows the policy the attention of the last `rows.rows` queries of a sequence, as the engine's
  /// kernel computed it, in device memory.
  void observe(Index sequence, const AttentionRows<const float>& rows,
               Stream stream = {}) requires(PolicyType::observes != Observes::logits) {
    check_rows("rows", sequence, rows.rows, 0);
    if (rows.data == nullptr && rows.rows > 0) detail::refuse({"rows"}, {"attention"}, {"null"});
    if (rows.rows > 0) {
      detail::check_row_strides(rows, config_.num_kv_heads, launches_.longest(sequence));
    }
    begin(stream);
    const Index observed = launches_.wanted_rows(sequence, rows.rows);
    if (observed == 0) return;
    auto work = launches_.work_on(sequence, TokenView<const float>{}, rows.rows, rows.rows);
    const Index first = rows.rows - observed;
    work.rows_in = {rows.data + first * rows.row_stride, observed, rows.row_stride,
                    rows.head_stride};
    work.row_entries = launches_.longest(sequence);
    work.observe = true;
    launches_.step_alone(work, first, observed, stream);
  }
  /// The last queries of each sequence; their attention is worked out here.
  template <class T>
  void observe(Sequences sequences, TokenView<T> last_queries,
               Stream stream = {}) requires Element<std::remove_const_t<T>> {
    using E = std::remove_const_t<T>;
    const TokenView<const E> q = last_queries;
    const Index rows = check_queries(sequences, q);
    begin(stream);
    const Index observed = launches_.wanted_rows(sequences, rows);
    auto work = launches_.work_on(sequences, q, rows, rows);
    work.observe = true;
    launches_.attend(work, rows - observed, observed, stream);
  }

  /// Lets the policy compress every head of the sequences to its budget.
  void compress(Sequences sequences, Stream stream = {}) {
    check_sequences(sequences);
    begin(stream);
    auto work = launches_.work_on(sequences, TokenView<const float>{}, 0, 0);
    work.compress = true;
    launches_.step_alone(work, 0, 0, stream);
  }

  /// Takes the last `tokens` of each sequence's latest append back, before a compression, as
  /// `tersekv::KVCache::rewind` does.
  void rewind(Sequences sequences, Index tokens, Stream stream = {}) {
    check_sequences(sequences);
    for (Index s = 0; s < sequences.count; ++s) {
      for (Index h = 0; h < config_.num_kv_heads; ++h) {
        detail::check_rewind(tokens, state(sequences.first + s, h).most_rewound());
      }
    }
    begin(stream);
    store().rewind(sequences.first * config_.num_kv_heads, sequences.count * config_.num_kv_heads,
                   tokens, stream);
  }

  /// Each sequence of `to`, of which `from` is none, then holds what `from` does, instead of what
  /// it held, and goes on as it would: for several answers to one prompt, or beams.
  void copy(Index from, Sequences to, Stream stream = {}) {
    check_sequences(from);
    check_sequences(to);
    if (from >= to.first && from < to.first + to.count) {
      detail::refuse({"to"}, {"other sequences than the original"}, {from});
    }
    begin(stream);
    const Index heads = config_.num_kv_heads;
    store().copy(from * heads, to.first * heads, to.count * heads, stream);
  }

  /// Forgets sequences: pages back to the pool, positions from 0 again.
  void clear(Sequences sequences, Stream stream = {}) {
    check_sequences(sequences);
    workspace_->wait(stream);
    store().clear(sequences.first * config_.num_kv_heads, sequences.count * config_.num_kv_heads,
                  stream);
  }

  /// Waits for the stream, learns the true lengths, and says whether all went well: throws Error or
  /// OutOfPages.
  void synchronize(Stream stream = {}) {
    workspace_->wait(stream);
    store().synchronize(stream);
    store().pool().check();
  }
  /// A copy in the host's memory that goes on as this would. Allocates.
  HostCache synchronize_to_host(Stream stream = {}) {
    synchronize(stream);
    HostCache host(config_, policy_);
    auto& to = tersekv::detail::CacheAccess::store(host);
    for (Index h = 0; h < store().heads(); ++h) store().copy_out(h, to, stream);
    tersekv::detail::CacheAccess::reserve(host, to.longest(0, to.heads()));
    return host;
  }
  /// Takes over the content of a cache of the same configuration and policy, parameters included,
  /// in the host's memory. What this held is forgotten. Throws OutOfPages, and is then partly
  /// filled: `clear` it.
  void synchronize_from_host(HostCache& host, Stream stream = {}) {
    auto& from = tersekv::detail::CacheAccess::store(host);
    detail::require(from.heads() > 0, "heads", "those of a cache that was not moved from", 0);
    detail::require_equal("num_sequences", host.config().num_sequences, config_.num_sequences);
    detail::check_same_config(host.config(), config_);
    detail::check_same_policy(host.policy(), policy_);
    detail::require_equal("bytes of a page", from.layout().page_bytes, store().layout().page_bytes);
    detail::require_equal("registers", from.layout().registers, store().layout().registers);
    for (Index h = 0; h < store().heads(); ++h) {
      detail::require(from.state(h).length <= store().capacity(), "length of a head",
                      "at most max_length", from.state(h).length);
    }
    clear({0, config_.num_sequences}, stream);
    for (Index h = 0; h < store().heads(); ++h) store().copy_in(h, from, stream);
  }

  /// Live entries of a head, as of the last `synchronize`.
  Index length(Index sequence, Index kv_head) const { return state(sequence, kv_head).length; }
  /// Of the longest of the sequence's heads, as far as the host knows: how many numbers a row of
  /// attention has for each.
  Index longest(Index sequence) const {
    check_sequences(sequence);
    return launches_.longest(sequence);
  }
  /// Tokens appended, as far as the host has seen: not those of replayed graphs.
  Index tokens_seen(Index sequence) const { return state(sequence, 0).seen; }
  Counts counts(Index sequence, Index kv_head) const { return state(sequence, kv_head).counts; }
  Counts total_counts() const { return store().total_counts(); }
  /// Live entries over tokens seen, summed over all heads; 1 for an empty cache.
  double keep_ratio() const { return store().keep_ratio(); }
  /// Every byte of device memory, entries as of the last `synchronize`; a shared workspace counts
  /// in full, a shared pool by the pages that heads hold.
  MemoryUsage memory() const {
    MemoryUsage usage = store().memory();
    usage.workspace = workspace_->bytes();
    return usage;
  }
  Index bytes() const { return memory().total(); }

  const CacheConfig& config() const { return config_; }
  const PolicyType& policy() const { return policy_; }
  Pool& pool() const { return store().pool(); }
  const Tuning& tuning() const { return launches_.tuning(); }

 private:
  using Launches = CacheLaunches<PolicyType, KeyCodec, ValueCodec, Runtime, Dims>;

  BasicKVCache(const CacheConfig& config, PolicyType policy, const DeviceOptions& options,
               Pool* pool, Workspace* workspace, Stream stream)
      : config_(config),
        policy_(std::move(policy)),
        own_workspace_(workspace == nullptr ? std::make_unique<Workspace>() : nullptr),
        workspace_(workspace == nullptr ? own_workspace_.get() : workspace),
        launches_(config_, policy_, options, pool, *workspace_, stream) {}

  /// Before what a call launches, and after its own checks.
  void begin(Stream stream) {
    store().pool().check();
    workspace_->wait(stream);
  }

  // Checks: all of them before anything is launched.

  auto& store() { return launches_.store(); }
  const auto& store() const { return launches_.store(); }
  const HeadState& state(Index sequence, Index kv_head) const {
    check_sequences(sequence);
    detail::require_index("kv_head", kv_head, config_.num_kv_heads);
    return store().state(sequence * config_.num_kv_heads + kv_head);
  }
  void check_sequences(Sequences s) const {
    const Index all = store().heads() / config_.num_kv_heads;
    detail::require_index("sequence", s.first, all);
    detail::require(s.count >= 1 && s.count <= all - s.first, "sequences",
                    "1 to as many as follow the first", s.count);
  }
  /// Returns the tokens of each sequence.
  Index check_share(Sequences s, Index tokens) const {
    check_sequences(s);
    detail::require(tokens >= 0 && tokens % s.count == 0, "tokens", "as many for each sequence",
                    tokens);
    return tokens / s.count;
  }
  template <class T>
  Index check_tokens(const Batch<T>& b) const {
    const Index rows = check_share(b.sequences, b.k.tokens);
    for (Index s = 0; s < b.sequences.count; ++s)
      detail::check_count(rows, tokens_seen(b.sequences.first + s));
    const Index each = b.k.tokens, heads = config_.num_kv_heads;
    detail::check_extents("k", b.k, each, heads, config_.head_dim);
    detail::check_extents("v", b.v, each, heads, config_.head_dim);
    if (PolicyType::needs_token_scores) detail::check_scores_given(b.token_scores, each, heads);
    return rows;
  }
  template <class T>
  Index check_batch(const Batch<T>& b) const {
    const Index rows = check_tokens(b);
    detail::check_extents("q", b.q, b.k.tokens, config_.num_q_heads, config_.head_dim);
    detail::check_extents("out", b.out, b.k.tokens, config_.num_q_heads, config_.head_dim);
    if (rows == 0) return rows;
    detail::check_written(detail::footprints_of(b));
    return rows;
  }
  template <class T>
  Index check_extend(const Batch<T>& b, const ExtendOptions& options) const {
    detail::require(options.compress_every >= kNever, "compress_every", "kNever, 0 or more",
                    options.compress_every);
    const Index rows = check_batch(b);
    const Index every = options.compress_every;
    check_room(b.sequences, rows, every > 0 ? std::min(every, rows) : rows);
    return rows;
  }
  /// `after_compression`: how many may be asked about then.
  void check_rows(const char* what, Index sequence, Index rows, Index after_compression) const {
    for (Index h = 0; h < config_.num_kv_heads; ++h) {
      const HeadState& head = state(sequence, h);
      const Index most = std::max(head.fresh, std::min(head.seen, after_compression));
      if (rows >= 0 && rows <= most) continue;
      detail::refuse({what}, {"0 to ", most, ", the tokens since the last compression"}, {rows});
    }
  }
  template <class T>
  Index check_queries(Sequences s, const TokenView<const T>& q) const {
    const Index rows = check_share(s, q.tokens);
    for (Index i = 0; i < s.count; ++i) check_rows("tokens of q", s.first + i, rows, 1);
    detail::check_extents("q", q, q.tokens, config_.num_q_heads, config_.head_dim);
    return rows;
  }
  /// Room in the page tables for `tokens` more, as far as the host knows the lengths, where the
  /// policy compresses after every `step` of them.
  void check_room(Sequences s, Index tokens, Index step) const {
    launches_.for_heads(s, [&](Index h) {
      const Index bound = store().bound(h), most = launches_.most_kept(h, step);
      const Index all = bound + tokens;
      const Index longest =
          std::max(bound + step, most < all - step ? most + step : all);  // no overflow
      if (longest <= store().capacity()) return;
      throw std::length_error(
          detail::text({"tersekv: entries of a head: expected at most ", store().capacity(),
                        " (DeviceOptions::max_length, max_chunk), got up to ", longest,
                        "; synchronize() learns the true length"}));
    });
  }

  CacheConfig config_;
  PolicyType policy_;
  std::unique_ptr<Workspace> own_workspace_;
  Workspace* workspace_;
  Launches launches_;
};

}  // namespace tersekv::cuda
