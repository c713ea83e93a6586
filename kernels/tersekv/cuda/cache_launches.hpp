// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include "tersekv/cuda/batch.hpp"
#include "tersekv/cuda/body/append.hpp"
#include "tersekv/cuda/body/step.hpp"
#include "tersekv/cuda/cache_setup.hpp"
#include "tersekv/cuda/device_store.hpp"
#include "tersekv/cuda/launcher.hpp"

namespace tersekv::cuda {

/// The launches behind a cache's verbs, after all checks, and the memory that they work on. A
/// decode step is three: append, attention, and what follows it (StepBody), of which the policy's
/// part may be one of its own, on another stream.
template <class PolicyType, class KeyCodec, class ValueCodec, class Runtime, class Dims>
class CacheLaunches {
 public:
  using Stream = typename Runtime::Stream;
  using Store = DeviceStore<Runtime, KeyCodec, ValueCodec>;
  using Workspace = BasicWorkspace<Runtime>;
  using Setup = CacheSetup<PolicyType, KeyCodec, ValueCodec, Dims>;
  template <class T>
  using Step = StepBody<PolicyType, KeyCodec, ValueCodec, T, Runtime::kTeamThreads>;
  /// What a call asks of its launches.
  template <class T>
  struct Work : Step<T>::Args {
    Sequences sequences{0};
  };

  CacheLaunches(const CacheConfig& config, const PolicyType& policy, const DeviceOptions& options,
                BasicPagePool<Runtime>* pool, Workspace& workspace, Stream stream)
      : policy_(policy),
        reduce_(config.group_reduce),
        tuning_(Setup::tuning(options.tuning)),
        shape_(Setup::shape(config, policy)),
        store_(Setup::budgets(config), config.num_kv_heads, Setup::layout(config, policy, shape_),
               shape_, Setup::most_entries(config, policy, shape_, options), pool, stream),
        workspace_(&workspace) {
    typename Workspace::Needs needs;
    needs.heads = store_.heads();
    needs.entries = store_.capacity();
    needs.group = shape_.group_size;
    needs.head_dim = shape_.head_dim;
    needs.rows = tuning_.observed_rows;
    needs.parts = parts_wanted(needs.heads, needs.group, needs.entries / kLeastPageSize,
                               Runtime::multiprocessors());
    // Who observes nothing still gives the caller a row of one sequence at a time.
    needs.observed = PolicyType::observes != Observes::nothing;
    needs.logit_rows = needs.observed ? needs.heads * needs.rows : config.num_kv_heads;
    workspace_->reserve(needs);
  }

  Store& store() { return store_; }
  const Store& store() const { return store_; }
  const Tuning& tuning() const { return tuning_; }

  template <class F>
  void for_heads(Sequences s, F&& f) const {
    const Index first = s.first * num_kv_heads();
    for (Index h = first; h < first + heads_of(s); ++h) f(h);
  }
  /// Entries of the longest head, as far as the host knows.
  Index longest(Sequences s) const { return store_.longest(s.first * num_kv_heads(), heads_of(s)); }
  /// Entries that the policy leaves a head, at most, where it compresses after `chunk` tokens.
  Index most_kept(Index head, Index chunk) const {
    return policy_.max_length(shape_, store_.state(head).budget, chunk);
  }
  /// How many of the last `rows` rows the policy asks for, of each sequence.
  Index wanted_rows(Sequences s, Index rows) const {
    if (PolicyType::observes == Observes::nothing || rows == 0) return 0;
    const auto wanted = [&](Index sequence) {
      const Index newest = store_.state(sequence * num_kv_heads()).newest;
      return std::clamp(policy_.observed_rows(std::max(rows, newest)), Index{0}, rows);
    };
    for (Index i = 1; i < s.count; ++i) {
      if (wanted(s.first + i) == wanted(s.first)) continue;
      tersekv::detail::refuse({"sequences"}, {"some whose last tokens the policy takes alike"},
                              {"prompts and single tokens"});
    }
    return wanted(s.first);
  }

  /// Appends `rows` tokens to each sequence of the batch, attends, observes and compresses.
  template <class T>
  void extend(const Batch<T>& batch, Index rows, const ExtendOptions& options, Stream stream) {
    const bool compress = options.compress_every != kNever;
    const Index step = options.compress_every > 0 ? options.compress_every : rows;
    for (Index start = 0; start < rows; start += step) {
      const Index count = std::min(step, rows - start);
      append(batch, start, count, stream);
      const Index observed = wanted_rows(batch.sequences, count);
      auto work = work_on(batch.sequences, batch.q, rows, start + count);
      work.attention.out = batch.out;
      work.attention.lse = batch.lse;
      work.compress = compress && observed == 0;
      attend(work, start, count - observed, stream);
      work.observe = true;
      work.compress = compress;
      attend(work, start + count - observed, observed, stream);
    }
  }

  /// Rows [first, first + count) of every sequence of the batch.
  template <class T>
  void append(const Batch<T>& batch, Index first, Index count, Stream stream) {
    if (count == 0) return;
    using Body = AppendBody<PolicyType, KeyCodec, ValueCodec, T, Runtime::kAppendThreads>;
    typename Body::Args args{.heads = store_.view(), .policy = policy_};
    args.k = batch.k;
    args.v = batch.v;
    args.token_scores = batch.token_scores;
    args.first_sequence = batch.sequences.first;
    args.rows = batch.k.tokens / batch.sequences.count;
    args.first_row = first;
    args.num_rows = count;
    args.scratch = scratch(1);
    // Copying an element is a fraction of what a step has to do for an entry.
    launch_teams<Body>(batch.sequences, count * shape_.head_dim / 2, kItemsOfBlock, stream, args);
    for_heads(batch.sequences, [&](Index h) { store_.note_append(h, count); });
  }

  /// `rows` queries of each sequence, of which those before end_row have been appended.
  template <class T>
  Work<T> work_on(Sequences s, const TokenView<const T>& q, Index rows, Index end_row) const {
    Work<T> work;
    work.policy = policy_;
    work.sequences = s;
    work.reduce = reduce_;
    auto& attention = work.attention;
    attention.heads = store_.view();
    attention.q = q;
    attention.first_sequence = s.first;
    attention.rows = rows;
    attention.end_row = end_row;
    attention.alpha = PolicyType::uses_weights ? policy_.alpha() : 0.0f;
    return work;
  }

  /// Attention of rows [first, first + count), then what `work` asks for: the policy's part after
  /// the last of them. Nothing where there are none.
  template <class T>
  void attend(Work<T>& work, Index first, Index count, Stream stream) {
    if (count == 0) return;
    const bool shown = work.observe || work.rows_out.data != nullptr;
    const bool policy_apart = may_be_apart(work);
    const Index heads = heads_of(work.sequences);
    const Index room =
        workspace_->logit_rows(heads, shape_.group_size, store_.capacity(), shape_.head_dim);
    const Index at_once = std::min(shown ? room : count, kMostRowsAtOnce);
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
      work.first_observed = done == 0;
      work.compress = compress && done + at_once >= count;
      if (rows_out.data != nullptr) {
        work.rows_out.data = rows_out.data + done * rows_out.row_stride;
      }
      launch_attention<Runtime, Dims>(attention, bounds(work), workspace_->parts(shape_.head_dim),
                                      tuning_, stream);
      work.join = attention.splits > 1;
      if (policy_apart) {
        step_apart(work, stream);
      } else if (work.join || shown || work.compress) {
        step(work, stream);
      }
    }
  }

  /// The policy's part where no attention was launched for it.
  template <class T>
  void step_alone(Work<T>& work, Index first, Index count, Stream stream) {
    work.attention.first_row = first;
    work.attention.num_rows = count;
    work.attention.write_logits = work.join = false;
    work.attention.scratch = scratch(std::max<Index>(count, 1));
    step(work, stream);
  }

 private:
  Index num_kv_heads() const { return store_.view().num_kv_heads; }
  Index heads_of(Sequences s) const { return s.count * num_kv_heads(); }
  DeviceScratch scratch(Index rows) const {
    return workspace_->scratch(store_.capacity(), shape_.group_size, shape_.head_dim, rows);
  }

  /// Launches a team for each head, which has `items` to do, a block for each `of_block`.
  template <class Body>
  void launch_teams(Sequences s, Index items, Index of_block, Stream stream,
                    const typename Body::Args& args) const {
    const int team = tuning_.team_blocks > 0
                         ? tuning_.team_blocks
                         : choose_team(heads_of(s), items, of_block, Runtime::multiprocessors(),
                                       DeviceScratch::kMostTeamBlocks);
    const int blocks = static_cast<int>(heads_of(s)) * team;
    Runtime::template launch<Body>(Grid{blocks}, team, workspace_->barrier_words(), stream, args,
                                   block_threads<Runtime, Body>(blocks));
  }

  template <class T>
  std::vector<Index> bounds(const Work<T>& work) const {
    return store_.bounds(work.sequences.first * num_kv_heads(), heads_of(work.sequences));
  }

  template <class T>
  void step(const Work<T>& work, Stream stream) {
    // A policy that works from logits (KeepKV) compares keys.
    constexpr Index of_block =
        PolicyType::observes == Observes::logits ? kItemsOfBlock : kNumbersOfBlock;
    launch_teams<Step<T>>(work.sequences, longest(work.sequences), of_block, stream, work);
    note_compression(work);
  }

  /// Whether the policy's part may be left to its own stream: that of a decode step, whose token is
  /// all that came since the last compression, as pages that become free stay the heads'.
  template <class T>
  bool may_be_apart(const Work<T>& work) const {
    constexpr bool keeps_all = PolicyType::observes == Observes::nothing &&
                               !PolicyType::needs_budget && !PolicyType::needs_token_scores;
    bool apart = !keeps_all && workspace_->policies().has_value() && work.attention.rows == 1 &&
                 work.rows_out.data == nullptr && (work.observe || work.compress);
    for_heads(work.sequences, [&](Index h) { apart = apart && store_.state(h).fresh <= 1; });
    return apart;
  }
  /// What the output needs on `stream`, the policy's part on the policies' own.
  template <class T>
  void step_apart(const Work<T>& work, Stream stream) {
    Work<T> joined = work, policy = work;
    joined.observe = joined.compress = false;
    if (work.join) step(joined, stream);
    policy.join = false;
    policy.keep_pages = true;  // the next layer takes some meanwhile
    workspace_->fork(stream, [&](Stream apart) { step(policy, apart); });
  }

  template <class T>
  void note_compression(const Work<T>& work) {
    if (!work.compress) return;
    for_heads(work.sequences, [&](Index h) {
      store_.note_compression(h, most_kept(h, std::max<Index>(1, store_.state(h).prompt)));
    });
  }

  PolicyType policy_;
  GroupReduce reduce_;
  Tuning tuning_;
  Shape shape_;
  Store store_;
  Workspace* workspace_;
};

}  // namespace tersekv::cuda
