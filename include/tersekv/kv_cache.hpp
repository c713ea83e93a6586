// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tersekv/attention.hpp"
#include "tersekv/call_checks.hpp"
#include "tersekv/checks.hpp"
#include "tersekv/chunk.hpp"
#include "tersekv/config.hpp"
#include "tersekv/copied_entries.hpp"
#include "tersekv/executor.hpp"
#include "tersekv/head_runner.hpp"
#include "tersekv/head_store.hpp"
#include "tersekv/head_worker.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/view.hpp"
#include "tersekv/workspace.hpp"

namespace tersekv {

/// The compressed KV cache of one attention layer, for a batch of sequences of unequal lengths.
///
/// Every (sequence, KV head) has its own entries, in unordered slots of fixed-size pages; the
/// policy decides which of them stay. `extend` is the one verb most engines need. Beneath it lie
/// `append`, `attend`, `observe` and `compress`, in that order, for engines with an attention
/// kernel of their own.
///
/// Moved, never copied (`clone` does that) or assigned: a vector of caches grows, but erases none.
/// Calls on one cache must not overlap, nor calls on caches that share a pool; but those that
/// change nothing (const, other than `clone`) may overlap each other. All are synchronous, with the
/// same bits whatever the executor, and allocate nothing at the budget (but a list, for more than
/// 80 chunks). A call that throws leaves the cache as it was: std::bad_alloc, std::invalid_argument
/// for bad arguments, std::length_error beyond 2^31 - 1 tokens; std::logic_error, where a policy or
/// executor breaks its word, may leave what can be cleared.
template <class PolicyType, StoredElement KeyCodec = float, StoredElement ValueCodec = KeyCodec,
          class Executor = SerialExecutor>
class KVCache {
  static_assert(CachePolicy<PolicyType>,
                "KVCache: the first template argument must satisfy tersekv::CachePolicy; derive "
                "from tersekv::PolicyBase");
  static_assert(
      detail::kObservesAsSaid<PolicyType>,
      "KVCache: the policy says what it `observes`, but has no observe(team, head, row) of "
      "its own");

 public:
  using HeadType = Head<KeyCodec, ValueCodec>;

  /// With a page pool of its own, on `resource`.
  explicit KVCache(const CacheConfig& config, PolicyType policy = {}, Executor executor = {},
                   std::pmr::memory_resource* resource = std::pmr::get_default_resource())
      : KVCache(config, std::move(policy), nullptr, std::move(executor), resource) {}

  /// With the pages and the scratch memory of `pool`, which outlives the cache.
  KVCache(const CacheConfig& config, PolicyType policy, PagePool& pool, Executor executor = {})
      : KVCache(config, std::move(policy), &pool, std::move(executor), pool.resource()) {}
  KVCache(const CacheConfig& config, PagePool& pool, Executor executor = {})
      : KVCache(config, PolicyType{}, pool, std::move(executor)) {}

  KVCache(KVCache&&) = default;
  KVCache& operator=(KVCache&&) = delete;

  /// A deep copy, with pages from the same shared pool or a pool of its own. O(bytes()).
  KVCache clone() const { return copy_on(shared_pool_, store_.pool().resource()); }
  /// The same with pages from `pool`, which must outlive the copy.
  KVCache clone(PagePool& pool) const { return copy_on(&pool, pool.resource()); }

  /// Appends the tokens of each chunk, attends causally to the cache and to the chunk (each token
  /// included), lets the policy observe, and compresses. Chunks name different sequences and may
  /// bring any number of tokens; one without any does nothing. O(tokens * length * head_dim) per
  /// query head.
  template <Element T>
  void extend(std::span<const Chunk<T>> chunks, ExtendOptions options = {}) {
    check().options(options);
    check().chunks(chunks);
    try {
      for (const Chunk<T>& chunk : chunks) {
        make_room(chunk.sequence, chunk.k.tokens, options.compress_every);
      }
    } catch (...) {
      for (const Chunk<T>& chunk : chunks) return_pages(chunk.sequence);
      throw;
    }
    const Index heads = config_.num_kv_heads, tasks = std::ssize(chunks) * heads;
    const Index every = options.compress_every;
    const auto chunk_of = [&](Index task) -> const Chunk<T>& {
      return chunks[static_cast<std::size_t>(task / heads)];
    };
    const auto worker = [&](Index task, const detail::Spaces& spaces) {
      const Index next = task + runner_.workers();
      return worker_of(
          chunk_of(task).sequence, task % heads, spaces,
          next < tasks ? pages_of(chunk_of(next).sequence, next % heads) : PageTable());
    };
    runner_.run(
        tasks,
        [&](Index task, auto& spaces, bool awake) {
          return worker(task, spaces).parts_of_extend(chunk_of(task), every, awake);
        },
        [&](Index task, auto& spaces) { worker(task, spaces).begin_extend(chunk_of(task)); },
        [&](Index task, auto& spaces) { worker(task, spaces).extend(chunk_of(task), every); },
        [&](Index task, auto& spaces, Index part, Index parts) {
          worker(task, spaces).extend_part(chunk_of(task), part, parts);
        },
        [&](Index task, auto& spaces) { worker(task, spaces).extend_rest(chunk_of(task), every); });
    for (const Chunk<T>& chunk : chunks) return_pages(chunk.sequence);
  }
  template <Element T>
  void extend(const Chunk<T>& chunk, ExtendOptions options = {}) {
    extend(std::span<const Chunk<T>>(&chunk, 1), options);
  }
  /// A std::vector, std::array, ... of chunks.
  template <class Chunks>
  requires requires(const Chunks& chunks) { std::span(chunks); }
  void extend(const Chunks& chunks, ExtendOptions options = {}) {
    const std::span all(chunks);
    extend(std::span<const typename decltype(all)::value_type>(all), options);
  }
  /// Of sequence 0.
  template <Element T>
  void extend(std::type_identity_t<TokenView<const T>> q,
              std::type_identity_t<TokenView<const T>> k,
              std::type_identity_t<TokenView<const T>> v, TokenView<T> out,
              ExtendOptions options = {}) {
    extend(Chunk<T>{.q = q, .k = k, .v = v, .out = out}, options);
  }

  /// Appends tokens of one sequence, without attention. O(tokens * head_dim) per head.
  template <class T>
  void append(Index sequence, TokenView<T> k,
              std::type_identity_t<TokenView<const std::remove_const_t<T>>> v,
              ScoreView token_scores = {}) requires Element<std::remove_const_t<T>> {
    const TokenView<const std::remove_const_t<T>> keys = k;
    check().tokens(sequence, keys, v, token_scores);
    reserve(sequence, k.tokens);
    runner_.run(config_.num_kv_heads, 256 * k.tokens * config_.num_kv_heads,
                [&](Index h, auto& spaces) {
                  worker_of(sequence, h, spaces).append(keys, v, token_scores);
                });
  }

  /// Memory for `tokens` more of the sequence: the next `append` of as many, or `extend` with the
  /// same options, then asks for none. With all layers asked first, none runs out of it when others
  /// have gone on. Throws std::bad_alloc. What is not used goes back after that call, or by
  /// `rewind(sequence, 0)`.
  void reserve(Index sequence, Index tokens, ExtendOptions options = {}) {
    check().more_tokens(sequence, tokens, options);
    try {
      make_room(sequence, tokens, options.compress_every);
    } catch (...) {
      return_pages(sequence);
      throw;
    }
  }

  /// Attention of the last `q.tokens` tokens of the sequence, each to the entries up to itself.
  /// If they are several, all of them have been appended since the last compression.
  template <Element T>
  void attend(Index sequence, std::type_identity_t<TokenView<const T>> q, TokenView<T> out,
              AttendOutputs outputs = {}) {
    check().queries(sequence, q);
    check().outputs(sequence, q, out, outputs);
    runner_.run(
        config_.num_kv_heads,
        [&](Index h, auto& spaces, bool awake) {
          return worker_of(sequence, h, spaces).parts_of_attend(q, outputs, awake);
        },
        [](Index, auto&) {},
        [&](Index h, auto& spaces) {
          worker_of(sequence, h, spaces, pages_of(sequence, h + runner_.workers()))
              .attend(q, out, outputs);
        },
        [&](Index h, auto& spaces, Index part, Index parts) {
          worker_of(sequence, h, spaces).attend_part(q, out, outputs, part, parts);
        },
        [&](Index h, auto& spaces) {
          worker_of(sequence, h, spaces).attend_rest(q, out, outputs);
        });
  }

  /// Shows the policy the attention of the last `rows.rows` queries, as the engine's kernel
  /// computed it: no more than tokens came since the last compression, which moves what rows speak
  /// of. It takes the last ones it asks for; what is shown twice, or after `extend`, counts twice.
  void observe(Index sequence,
               const AttentionRows<const float>& rows) requires(PolicyType::observes !=
                                                                Observes::logits) {
    check().attention(sequence, rows);
    runner_.run(config_.num_kv_heads, rows.rows * entries_of(sequence),
                [&](Index h, auto& spaces) { worker_of(sequence, h, spaces).observe(rows); });
  }

  /// Shows the policy the last queries of the sequence; the cache works their attention out itself,
  /// from the keys alone.
  template <class T>
  void observe(Index sequence, TokenView<T> last_queries) requires Element<std::remove_const_t<T>> {
    const TokenView<const std::remove_const_t<T>> q = last_queries;
    check().queries(sequence, q);
    runner_.run(
        config_.num_kv_heads,
        [&](Index h, auto& spaces, bool) {
          return worker_of(sequence, h, spaces).parts_of_observe(q);
        },
        [](Index, auto&) {},
        [&](Index h, auto& spaces) { worker_of(sequence, h, spaces).observe(q); },
        [&](Index h, auto& spaces, Index part, Index parts) {
          worker_of(sequence, h, spaces).observe_part(q, part, parts);
        },
        [&](Index h, auto& spaces) { worker_of(sequence, h, spaces).observe_rest(q); });
  }

  /// Lets the policy compress every head of the sequence to its budget.
  void compress(Index sequence) {
    check().sequence(sequence);
    const Index tokens = std::max<Index>(1, state(sequence, 0).fresh);
    runner_.run(config_.num_kv_heads, tokens * entries_of(sequence),
                [&](Index h, auto& spaces) { worker_of(sequence, h, spaces).compress(); });
    return_pages(sequence);
  }

  /// Takes the last `tokens` of the latest append back, before a compression: what a draft model
  /// guessed wrong, where one guesses ahead (of the append before none, once this one is gone). The
  /// cache is then, to the bit, as if they had not been appended, but for what the policy was
  /// shown: `append` and `attend` the guesses, `rewind` the wrong ones, `observe` the others,
  /// `compress`.
  void rewind(Index sequence, Index tokens) {
    check().rewind(sequence, tokens);
    for (Index h = 0; h < config_.num_kv_heads; ++h) store_.rewind(index_of(sequence, h), tokens);
  }

  /// Sequence `to` then holds what `from` does, instead of what it held, and goes on as it would:
  /// for answers to one prompt, or beams. (Between caches: `copy_sequence`.) O(length * head_dim).
  void copy(Index from, Index to) {
    check().sequence(from);
    check().sequence(to);
    if (from == to) return;
    store_.copy(index_of(to, 0), store_, index_of(from, 0), config_.num_kv_heads);
  }

  /// Forgets one sequence, or all of them: pages back to the pool, positions from 0 again. The
  /// workers' scratch stays, so that filling up again allocates nothing (`trim` gives it back).
  void clear(Index sequence) {
    check().sequence(sequence);
    for (Index h = 0; h < config_.num_kv_heads; ++h) store_.clear(index_of(sequence, h));
  }
  void clear() {
    for (Index h = 0; h < store_.heads(); ++h) store_.clear(h);
  }

  /// Gives memory back that a long prompt has left behind: scratch beyond what single tokens and
  /// the live entries need, where no other cache uses it, and idle pages of a pool of the cache's
  /// own. The next call may allocate again. Throws std::bad_alloc; some scratch then stays large.
  void trim() {
    check().sequence(0);
    runner_.workspaces().shrink(store_.longest(0, store_.heads()));
    if (shared_pool_ == nullptr) store_.pool().trim();
  }

  /// Live entries of a head.
  Index length(Index sequence, Index kv_head) const { return state(sequence, kv_head).length; }
  /// Of the longest of the sequence's heads: how many numbers a row of attention has for each.
  Index longest(Index sequence) const {
    check().sequence(sequence);
    return store_.longest(index_of(sequence, 0), config_.num_kv_heads);
  }
  /// Tokens appended since the start or the last `clear`: the position of the next one, by which
  /// its query and key are rotated (never by `length`, which evictions lower).
  Index tokens_seen(Index sequence) const { return state(sequence, 0).seen; }
  /// What left, and how.
  Counts counts(Index sequence, Index kv_head) const { return state(sequence, kv_head).counts; }
  Counts total_counts() const { return store_.total_counts(); }
  /// Live entries over tokens seen, summed over all heads; 1 for an empty cache.
  double keep_ratio() const { return store_.keep_ratio(); }
  /// The head in its storage order, for an engine's own kernel and for reading attention rows.
  /// Valid until the next call that changes or moves the cache.
  HeadView<KeyCodec, ValueCodec> head(Index sequence, Index kv_head) const {
    state(sequence, kv_head);
    return store_.view(index_of(sequence, kv_head), shape_);
  }
  /// The head as a policy's bodies get it, for who runs `observe` and `score` outside of the cache;
  /// without the scratch that writing scaled keys or values takes.
  HeadType mutable_head(Index sequence, Index kv_head) {
    state(sequence, kv_head);
    return store_.head(index_of(sequence, kv_head), shape_, {});
  }
  /// Copies of the live entries, in order of position. Allocates.
  std::vector<Entry> entries(Index sequence, Index kv_head) const {
    return detail::copied_entries(head(sequence, kv_head), policy_);
  }

  /// Every byte held: all that came from the memory resource, pages of a shared pool as far as this
  /// cache has them, and no scratch, which is that pool's. (Beside it there are the cache object,
  /// with its copy of the config, and the object of a pool of its own.) Caches that share a pool
  /// hold, together, the sum of their bytes() and the pool's idle_bytes().
  MemoryUsage memory() const {
    MemoryUsage usage = store_.memory();
    usage.bookkeeping += runner_.workspaces().bookkeeping_bytes();
    return usage;
  }
  Index bytes() const { return memory().total(); }

  const CacheConfig& config() const { return config_; }
  const PolicyType& policy() const { return policy_; }
  PagePool& pool() const {
    check().sequence(0);
    return store_.pool();
  }

 private:
  friend struct detail::CacheAccess;
  using WorkerType = detail::HeadWorker<PolicyType, HeadType>;

  KVCache(const CacheConfig& config, PolicyType policy, PagePool* shared, Executor executor,
          std::pmr::memory_resource* resource)
      : config_(config),
        policy_(std::move(policy)),
        shape_(detail::checked_shape(config_, policy_, executor.workers())),
        shared_pool_(shared),
        runner_(
            std::move(executor), config.num_kv_heads,
            detail::WorkspaceForm::of<PolicyType, KeyCodec, ValueCodec>(config.page_size, shape_),
            resource),
        store_(config.num_sequences * config.num_kv_heads,
               PageLayout::of<KeyCodec, ValueCodec>(
                   config.page_size, config.head_dim, PolicyType::uses_weights,
                   policy_.statistics(shape_), policy_.registers(shape_)),
               shared, resource) {
    for (Index h = 0; h < store_.heads(); ++h) {
      store_.state(h).budget = config.budget.of(h % config.num_kv_heads);
    }
    runner_.workspaces().use(store_.pool().scratch());
  }

  KVCache copy_on(PagePool* shared, std::pmr::memory_resource* resource) const {
    check().sequence(0);
    KVCache copy(config_, policy_, shared, runner_.executor(), resource);
    copy.store_.copy(0, store_, 0, store_.heads());
    copy.runner_.workspaces().reserve({store_.longest(0, store_.heads())});
    return copy;
  }

  /// All checks of a call come before anything changes.
  auto check() const {
    return detail::CallChecks<PolicyType, KeyCodec, ValueCodec>{config_, store_};
  }
  Index index_of(Index sequence, Index kv_head) const {
    return sequence * config_.num_kv_heads + kv_head;
  }
  const HeadState& state(Index sequence, Index kv_head) const {
    check().head(sequence, kv_head);
    return store_.state(index_of(sequence, kv_head));
  }

  /// Pages and scratch for `tokens` more, compressed `every` rows.
  void make_room(Index sequence, Index tokens, Index every) {
    Index most_entries = 0;
    for (Index h = 0; h < config_.num_kv_heads; ++h) {
      const Index head = index_of(sequence, h);
      const Index entries =
          detail::most_in_call(policy_, shape_, store_.state(head), tokens, every);
      store_.reserve(head, entries);
      most_entries = std::max(most_entries, entries);
    }
    runner_.workspaces().reserve({most_entries, every > 0 ? std::min(every, tokens) : tokens});
  }
  void return_pages(Index sequence) noexcept {
    for (Index h = 0; h < config_.num_kv_heads; ++h) store_.shrink(index_of(sequence, h));
  }

  PageTable pages_of(Index sequence, Index h) const {  // none, if there is no such head
    return h < config_.num_kv_heads ? store_.pages(index_of(sequence, h)) : PageTable();
  }

  Index entries_of(Index sequence) const {
    return store_.entries(index_of(sequence, 0), config_.num_kv_heads);
  }
  WorkerType worker_of(Index sequence, Index h, const detail::Spaces& spaces,
                       PageTable next_pages = {}) {
    const auto head = store_.head(index_of(sequence, h), shape_, spaces.worker.scratch);
    return {policy_, config_.group_reduce, h, head, spaces, next_pages};
  }

  CacheConfig config_;
  PolicyType policy_;
  Shape shape_;
  PagePool* shared_pool_;
  detail::HeadRunner<Executor> runner_;
  // Last: who throws before it leaves a shared pool's page size as it was.
  detail::HeadStore<KeyCodec, ValueCodec> store_;
};

}  // namespace tersekv
