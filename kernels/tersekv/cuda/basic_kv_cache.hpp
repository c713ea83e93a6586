// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tersekv/checks.hpp"
#include "tersekv/cuda/batch.hpp"
#include "tersekv/cuda/body/append.hpp"
#include "tersekv/cuda/body/step.hpp"
#include "tersekv/cuda/device_store.hpp"
#include "tersekv/cuda/launcher.hpp"
#include "tersekv/kv_cache.hpp"

namespace tersekv::cuda {

/// What a cache on a device needs to know in advance, as its steps allocate nothing.
struct DeviceOptions {
  /// Tokens between two compressions, at most: a prompt, or the chunks it comes in.
  Index max_chunk = 512;
  /// Entries of a head, at most; kAuto: what the policy leaves, and max_chunk. Must be given where
  /// the policy sets no limit.
  Index max_length = kAuto;
  Tuning tuning = {};
};

/// The compressed KV cache of one attention layer in device memory: `tersekv::KVCache` with the
/// same policies, verbs and meanings, views of device memory, and a stream for every call.
///
/// All calls are asynchronous, allocate nothing and can be captured in a CUDA graph, but for the
/// constructors and destructor, and for those whose names begin with `synchronize`. A replayed
/// graph takes one more step from where the cache then is, whatever its lengths are.
///
/// The host knows upper bounds of lengths, not lengths: `length`, `counts`, `keep_ratio` and
/// `memory` answer as of the last `synchronize`.
///
/// Bad arguments throw std::invalid_argument or std::length_error before anything is launched and
/// change nothing; values are not looked at (the CPU's cache refuses NaN). Error: a launch failed,
/// in the call that made it. OutOfPages: a head found no page in a shared pool, in the first call
/// that can know.
///
/// `Runtime` is the device: `CudaRuntime` (`tersekv::cuda::KVCache`), or host threads in the tests.
template <class PolicyType, Element KeyCodec, Element ValueCodec, class Runtime, class Dims>
class BasicKVCache {
  static_assert(CachePolicy<PolicyType>,
                "KVCache: the first template argument must satisfy tersekv::CachePolicy");
  static_assert(std::is_trivially_copyable_v<PolicyType>, "a policy travels to the device as it is");

 public:
  using Stream = typename Runtime::Stream;
  using Pool = BasicPagePool<Runtime>;
  using Workspace = BasicWorkspace<Runtime>;
  using HostCache = tersekv::KVCache<PolicyType, KeyCodec, ValueCodec>;

  /// With a pool of its own, that has pages for all heads, and a workspace of its own. Synchronises.
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
    detail::require(options.compress_every >= kNever, "compress_every", "kNever, 0 or more",
                    options.compress_every);
    const Index rows = check_batch(batch);
    const Index step = options.compress_every > 0 ? options.compress_every : rows;
    check_room(batch.sequences, options.compress_every == kNever ? rows : std::min(step, rows),
               options.compress_every != kNever);
    store_.pool().check();
    for (Index start = 0; start < rows; start += step) {
      const Index count = std::min(step, rows - start);
      append_rows(batch, start, count, stream);
      const Index observed = wanted_rows(batch.sequences, count);
      Work<T> work = work_on(batch.sequences, batch.q, rows, start + count);
      work.attention.out = batch.out;
      work.attention.lse = batch.lse;
      attend_rows(work, start, count - observed, stream);
      work.observe = true;
      work.compress = options.compress_every != kNever;
      attend_rows(work, start + count - observed, observed, stream);
      if (work.compress) note_compression(batch.sequences);
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
    check_room(sequences, rows, false);
    store_.pool().check();
    append_rows(batch, 0, rows, stream);
  }

  /// Attention of the last tokens of each sequence, each to the entries up to itself. `out` may be
  /// null; so may outputs.rows, which are of one sequence.
  template <Element T>
  void attend(Sequences sequences, std::type_identity_t<TokenView<const T>> q, TokenView<T> out,
              AttendOutputs outputs = {}, Stream stream = {}) {
    const Index rows = check_queries(sequences, q);
    if (out.data != nullptr) {
      detail::check_extents("out", out, q.tokens, config_.num_q_heads, config_.head_dim);
      detail::check_output(q, {}, {}, out);
    }
    if (outputs.rows.data != nullptr) {
      detail::require_equal("sequences, with rows", sequences.count, 1);
      detail::require_equal("rows", outputs.rows.rows, rows);
      detail::check_row_strides(outputs.rows, config_.num_kv_heads, longest(sequences));
    }
    store_.pool().check();
    Work<T> work = work_on(sequences, q, rows, rows);
    work.attention.out = out;
    work.attention.lse = outputs.lse;
    work.rows_out = outputs.rows;
    attend_rows(work, 0, rows, stream);
  }

  /// Shows the policy the attention of the last `rows.rows` queries of a sequence, as the engine's
  /// kernel computed it, in device memory.
  void observe(Index sequence, const AttentionRows<const float>& rows,
               Stream stream = {}) requires(PolicyType::observes != Observes::logits) {
    check_rows("rows", sequence, rows.rows);
    if (rows.data == nullptr && rows.rows > 0) detail::refuse("rows", "attention", "null");
    store_.pool().check();
    const Index observed = wanted_rows(sequence, rows.rows);
    if (observed == 0) return;
    Work<float> work = work_on(sequence, TokenView<const float>{}, rows.rows, rows.rows);
    const Index first = rows.rows - observed;
    work.rows_in = {rows.data + first * rows.row_stride, observed, rows.row_stride,
                    rows.head_stride};
    work.observe = true;
    step(work, first, observed, true, stream);
  }
  /// The last queries of each sequence; their attention is worked out here.
  template <class T>
  void observe(Sequences sequences, TokenView<T> last_queries,
               Stream stream = {}) requires Element<std::remove_const_t<T>> {
    using E = std::remove_const_t<T>;
    const TokenView<const E> q = last_queries;
    const Index rows = check_queries(sequences, q);
    store_.pool().check();
    const Index observed = wanted_rows(sequences, rows);
    Work<E> work = work_on(sequences, q, rows, rows);
    work.observe = true;
    attend_rows(work, rows - observed, observed, stream);
  }

  /// Lets the policy compress every head of the sequences to its budget.
  void compress(Sequences sequences, Stream stream = {}) {
    check_sequences(sequences);
    store_.pool().check();
    Work<float> work = work_on(sequences, TokenView<const float>{}, 0, 0);
    work.compress = true;
    step(work, 0, 0, true, stream);
    note_compression(sequences);
  }

  /// Forgets sequences: pages back to the pool, positions from 0 again.
  void clear(Sequences sequences, Stream stream = {}) {
    check_sequences(sequences);
    store_.clear(sequences.first * config_.num_kv_heads, sequences.count * config_.num_kv_heads,
                 stream);
  }

  /// Waits for the stream, learns the true lengths, and says whether all went well: throws Error or
  /// OutOfPages.
  void synchronize(Stream stream = {}) {
    store_.synchronize(stream);
    store_.pool().check();
  }
  /// A copy in the host's memory that goes on as this would. Allocates.
  HostCache synchronize_to_host(Stream stream = {}) {
    synchronize(stream);
    HostCache host(config_, policy_);
    auto& to = tersekv::detail::CacheAccess::store(host);
    for (Index h = 0; h < store_.heads(); ++h) store_.copy_out(h, to, stream);
    tersekv::detail::CacheAccess::filled(host);
    return host;
  }
  /// Takes over the content of a cache of the same configuration in the host's memory. What this
  /// held is forgotten. Throws OutOfPages, and is then partly filled: `clear` it.
  void synchronize_from_host(HostCache& host, Stream stream = {}) {
    auto& from = tersekv::detail::CacheAccess::store(host);
    check_same(host.config());
    for (Index h = 0; h < store_.heads(); ++h) {
      detail::require(from.state(h).length <= store_.capacity(), "length of a head",
                      "at most max_length", from.state(h).length);
    }
    clear({0, config_.num_sequences}, stream);
    for (Index h = 0; h < store_.heads(); ++h) store_.copy_in(h, from, stream);
  }

  /// Live entries of a head, as of the last `synchronize`.
  Index length(Index sequence, Index kv_head) const { return state(sequence, kv_head).length; }
  /// Tokens appended, as far as the host has seen: not those of replayed graphs.
  Index tokens_seen(Index sequence) const { return state(sequence, 0).seen; }
  Counts counts(Index sequence, Index kv_head) const { return state(sequence, kv_head).counts; }
  /// Every byte of device memory, entries as of the last `synchronize`; a shared workspace counts in
  /// full, a shared pool by the pages that live entries need.
  MemoryUsage memory() const {
    MemoryUsage usage = store_.memory();
    usage.workspace = workspace_->bytes();
    return usage;
  }
  Index bytes() const { return memory().total(); }

  const CacheConfig& config() const { return config_; }
  const PolicyType& policy() const { return policy_; }
  Pool& pool() const { return store_.pool(); }
  const Tuning& tuning() const { return tuning_; }

 private:
  using Store = DeviceStore<Runtime, KeyCodec, ValueCodec>;
  template <class T>
  using Step = StepBody<PolicyType, KeyCodec, ValueCodec, T, Runtime::kTeamThreads>;
  /// What a call asks of its launches.
  template <class T>
  struct Work : Step<T>::Args {
    Sequences sequences{0};
  };

  BasicKVCache(const CacheConfig& config, PolicyType policy, const DeviceOptions& options,
               Pool* pool, Workspace* workspace, Stream stream)
      : config_(config),
        policy_(std::move(policy)),
        tuning_(options.tuning),
        shape_(checked_shape(config_, policy_)),
        store_(budgets(config), config.num_kv_heads, page_layout(config, policy_, shape_), shape_,
               most_entries(config, policy_, shape_, options), pool, stream),
        own_workspace_(workspace == nullptr ? std::make_unique<Workspace>() : nullptr),
        workspace_(workspace == nullptr ? own_workspace_.get() : workspace) {
    detail::require(tuning_.observed_rows >= 1, "observed_rows", "at least 1",
                    tuning_.observed_rows);
    typename Workspace::Needs needs;
    needs.heads = store_.heads();
    needs.entries = store_.capacity();
    needs.group = shape_.group_size;
    needs.head_dim = shape_.head_dim;
    needs.rows = tuning_.observed_rows;
    needs.parts = shape_.group_size * (needs.heads + 4 * Runtime::multiprocessors());
    needs.logits = PolicyType::observes != Observes::nothing;
    workspace_->reserve(needs);
  }

  static Shape checked_shape(const CacheConfig& config, const PolicyType& policy) {
    detail::check_config(config);
    detail::require(config.page_size >= kLeastPageSize, "page_size, on a device",
                    "at least 64", config.page_size);
    if (!Dims::contains(config.head_dim)) {
      detail::refuse("head_dim, on a device", Dims::list(), detail::text(config.head_dim));
    }
    const float scale =
        config.scale != 0.0f ? config.scale : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
    const Shape shape{config.num_q_heads / config.num_kv_heads, config.head_dim, config.layer,
                      scale};
    detail::require(shape.group_size <= 16, "query heads of a group, on a device", "1 to 16",
                    shape.group_size);
    if (PolicyType::needs_budget && config.budget.size() == 0) {
      detail::refuse("budget", "entries per KV head (kUnlimited to keep all)", "none");
    }
    for (Index h = 0; h < config.num_kv_heads; ++h) policy.validate(shape, config.budget.of(h));
    return shape;
  }
  static PageLayout page_layout(const CacheConfig& config, const PolicyType& policy,
                                const Shape& shape) {
    return PageLayout(config.page_size, config.head_dim, sizeof(KeyCodec), sizeof(ValueCodec),
                      PolicyType::uses_weights, policy.statistics(shape), policy.registers(shape));
  }
  static std::vector<Index> budgets(const CacheConfig& config) {
    std::vector<Index> each;
    for (Index h = 0; h < config.num_sequences * config.num_kv_heads; ++h) {
      each.push_back(config.budget.of(h % config.num_kv_heads));
    }
    return each;
  }
  static Index most_entries(const CacheConfig& config, const PolicyType& policy, const Shape& shape,
                            const DeviceOptions& options) {
    detail::require_count("max_chunk", options.max_chunk, 1);
    detail::require_count("max_length", options.max_length, 1, true);
    if (options.max_length != kAuto) return options.max_length;
    Index most = 0;
    for (Index h = 0; h < config.num_kv_heads; ++h) {
      most = std::max(most, policy.max_length(shape, config.budget.of(h)));
    }
    if (most > kMostTokens) {
      detail::refuse("max_length", "a number, as this policy and budget set no limit", "kAuto");
    }
    return most + options.max_chunk;
  }

  // Checks: all of them before anything is launched.

  const HeadState& state(Index sequence, Index kv_head) const {
    check_sequences(sequence);
    detail::require_index("kv_head", kv_head, config_.num_kv_heads);
    return store_.state(sequence * config_.num_kv_heads + kv_head);
  }
  void check_sequences(Sequences s) const {
    const Index all = store_.heads() / config_.num_kv_heads;
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
    for (Index s = 0; s < b.sequences.count; ++s) {
      detail::check_count(rows, tokens_seen(b.sequences.first + s));
    }
    detail::check_extents("k", b.k, b.k.tokens, config_.num_kv_heads, config_.head_dim);
    detail::check_extents("v", b.v, b.k.tokens, config_.num_kv_heads, config_.head_dim);
    if (PolicyType::needs_token_scores && b.token_scores.data == nullptr && rows > 0) {
      detail::refuse("token_scores", "a score for every token and KV head", "none");
    }
    return rows;
  }
  template <class T>
  Index check_batch(const Batch<T>& b) const {
    const Index rows = check_tokens(b);
    detail::check_extents("q", b.q, b.k.tokens, config_.num_q_heads, config_.head_dim);
    detail::check_extents("out", b.out, b.k.tokens, config_.num_q_heads, config_.head_dim);
    if (rows > 0) detail::check_output(b.q, b.k, b.v, b.out);
    return rows;
  }
  void check_rows(const char* what, Index sequence, Index rows) const {
    const HeadState& head = state(sequence, 0);
    const Index most = std::max(head.fresh, std::min<Index>(head.seen, 1));
    if (rows >= 0 && rows <= most) return;
    detail::refuse(what, detail::text("0 to ", most, ", the tokens since the last compression"),
                   detail::text(rows));
  }
  template <class T>
  Index check_queries(Sequences s, const TokenView<const T>& q) const {
    const Index rows = check_share(s, q.tokens);
    for (Index i = 0; i < s.count; ++i) check_rows("tokens of q", s.first + i, rows);
    detail::check_extents("q", q, q.tokens, config_.num_q_heads, config_.head_dim);
    return rows;
  }
  /// Room in the page tables for `tokens` more, as far as the host knows the lengths; `compressed`:
  /// a head is first what its policy leaves, where that is less.
  void check_room(Sequences s, Index tokens, bool compressed) const {
    for_heads(s, [&](Index h) {
      Index length = store_.bound(h);
      if (compressed) length = std::max(length, std::min(most_kept(h), store_.bound(h) + tokens));
      if (length + tokens <= store_.capacity() || store_.bound(h) + tokens <= store_.capacity()) {
        return;
      }
      throw std::length_error(detail::text(
          "tersekv: entries of a head: expected at most ", store_.capacity(),
          " (DeviceOptions::max_length, max_chunk), got up to ", store_.bound(h), " + ", tokens,
          "; synchronize() learns the true length"));
    });
  }
  Index most_kept(Index head) const {
    return policy_.max_length(shape_, store_.state(head).budget);
  }
  template <class F>
  void for_heads(Sequences s, F&& f) const {
    const Index first = s.first * config_.num_kv_heads;
    for (Index h = first; h < first + s.count * config_.num_kv_heads; ++h) f(h);
  }
  Index longest(Sequences s) const {
    return store_.longest(s.first * config_.num_kv_heads, s.count * config_.num_kv_heads);
  }
  void check_same(const CacheConfig& other) const {
    detail::require_equal("num_sequences", other.num_sequences, config_.num_sequences);
    detail::require_equal("num_q_heads", other.num_q_heads, config_.num_q_heads);
    detail::require_equal("num_kv_heads", other.num_kv_heads, config_.num_kv_heads);
    detail::require_equal("head_dim", other.head_dim, config_.head_dim);
    detail::require_equal("page_size", other.page_size, config_.page_size);
  }

  // Launches.

  /// How many of the last `rows` rows the policy asks for.
  Index wanted_rows(Sequences s, Index rows) const {
    if (PolicyType::observes == Observes::nothing || rows == 0) return 0;
    return std::min(rows, policy_.observed_rows(std::max(rows, state(s.first, 0).newest)));
  }

  template <class T>
  Work<T> work_on(Sequences s, const TokenView<const T>& q, Index rows, Index end_row) const {
    Work<T> work;
    work.policy = policy_;
    work.sequences = s;
    work.reduce = config_.group_reduce;
    auto& attention = work.attention;
    attention.heads = store_.view();
    attention.q = q;
    attention.first_sequence = s.first;
    attention.rows = rows;
    attention.end_row = end_row;
    attention.alpha = PolicyType::uses_weights ? policy_.alpha() : 0.0f;
    return work;
  }

  template <class T>
  void append_rows(const Batch<T>& batch, Index first_row, Index count, Stream stream) {
    if (count == 0) return;
    using Body = AppendBody<PolicyType, KeyCodec, ValueCodec, T, Runtime::kAppendThreads>;
    typename Body::Args args{.heads = store_.view(), .policy = policy_};
    args.k = batch.k;
    args.v = batch.v;
    args.token_scores = batch.token_scores;
    args.first_sequence = batch.sequences.first;
    args.rows = batch.k.tokens / batch.sequences.count;
    args.first_row = first_row;
    args.num_rows = count;
    args.scratch = scratch(1);
    Runtime::template launch<Body>(Grid{static_cast<int>(heads_of(batch.sequences))}, 1, nullptr,
                                   stream, args);
    for_heads(batch.sequences, [&](Index h) { store_.note_append(h, count); });
  }

  /// Attention of rows [first, first + count), then what `work` asks for: the policy's part after
  /// the last of them, also where there are none.
  template <class T>
  void attend_rows(Work<T>& work, Index first, Index count, Stream stream) {
    const bool shown = work.observe || work.rows_out.data != nullptr;
    const Index heads = heads_of(work.sequences);
    const Index room = workspace_->logits() / (heads * shape_.group_size * store_.capacity());
    const Index at_once = shown ? std::max<Index>(room, 1) : count;
    const AttentionRows<float> rows_out = work.rows_out;
    const bool compress = work.compress;
    for (Index done = 0; done < count; done += at_once) {
      auto& attention = work.attention;
      attention.first_row = first + done;
      attention.num_rows = std::min(at_once, count - done);
      attention.write_logits = shown;
      attention.biased = rows_out.data != nullptr || PolicyType::observes != Observes::logits;
      attention.scratch = scratch(attention.num_rows);
      attention.part_out = workspace_->part_out();
      attention.part_max = workspace_->part_max();
      attention.part_sum = workspace_->part_sum();
      const Index longest =
          tuning_.plan_length == kAuto ? this->longest(work.sequences) : tuning_.plan_length;
      launch_attention<Runtime, Dims>(attention, heads, longest, workspace_->parts(), tuning_,
                                      stream);
      work.join = attention.splits > 1;
      work.first_observed = done == 0;
      work.compress = compress && done + at_once >= count;
      if (rows_out.data != nullptr) {
        work.rows_out.data = rows_out.data + done * rows_out.row_stride;
      }
      if (work.join || shown || work.compress) {
        step(work, attention.first_row, attention.num_rows, false, stream);
      }
    }
    if (count == 0 && compress) step(work, first, 0, true, stream);
  }

  /// The joining of splits, and the policy's part. `alone`: no attention was launched for it.
  template <class T>
  void step(Work<T>& work, Index first, Index count, bool alone, Stream stream) {
    auto& attention = work.attention;
    if (alone) {
      attention.first_row = first;
      attention.num_rows = count;
      attention.write_logits = work.join = false;
      attention.scratch = scratch(std::max<Index>(count, 1));
    }
    const Index heads = heads_of(work.sequences);
    const int team = tuning_.team_blocks > 0
                         ? tuning_.team_blocks
                         : choose_team(heads, longest(work.sequences), Runtime::multiprocessors(),
                                       DeviceScratch::kMostTeamBlocks);
    const typename Step<T>::Args& args = work;
    Runtime::template launch<Step<T>>(Grid{static_cast<int>(heads) * team}, team,
                                      workspace_->barrier_words(), stream, args);
  }

  void note_compression(Sequences s) {
    for_heads(s, [&](Index h) { store_.note_compression(h, most_kept(h)); });
  }
  Index heads_of(Sequences s) const { return s.count * config_.num_kv_heads; }
  DeviceScratch scratch(Index rows) const {
    return workspace_->scratch(store_.capacity(), shape_.group_size, shape_.head_dim, rows);
  }

  CacheConfig config_;
  PolicyType policy_;
  Tuning tuning_;
  Shape shape_;
  Store store_;
  std::unique_ptr<Workspace> own_workspace_;
  Workspace* workspace_;
};

}  // namespace tersekv::cuda
