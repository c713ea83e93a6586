// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bodies.hpp"
#include "tersekv/cuda/body/step.hpp"
#include "tersekv/cuda/device_store.hpp"
#include "tersekv/cuda/launcher.hpp"
#include "tersekv/policies/full.hpp"

namespace tersekv_bench {

/// The head_dims of the benchmarks; each costs compile time.
using Dims = tersekv::cuda::HeadDims<64, 128>;

inline constexpr Index kPageSize = 64;

struct AttentionShape {
  Index copies = 1, sequences = 1, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::vector<Index> lengths;  ///< of every head
};
/// What attention gives beside the output, and what it takes beside the query.
enum Mode { kPlain = 0, kBias = 1, kLogits = 2, kRows = 4 };

/// What the C functions know of a set.
template <class Runtime>
class AnyAttentionSet {
 public:
  using Stream = typename Runtime::Stream;
  virtual ~AnyAttentionSet() = default;
  virtual void run(Index copy, const void* q, void* out, int mode, Stream stream) = 0;
  virtual void probe(Index copy, Index blocks_per_multiprocessor, Stream stream) = 0;
  virtual std::uint32_t probe_sum(Index copy, Stream stream) = 0;
  virtual void export_to(Index copy, void* k, void* v, float* weights, Index padded,
                         Stream stream) = 0;
  virtual void scores(int what, Index head, Index member, float* to, Index count,
                      Stream stream) = 0;
  virtual Index bytes(int what) const = 0;
};

/// Copies of the entries of one layer, their lengths as one likes, and attention over them by the
/// library's own launcher: a cache's `attend` gives a policy's scores for one sequence only.
template <class Runtime, class Codec>
class AttentionSet final : public AnyAttentionSet<Runtime> {
 public:
  using Stream = typename Runtime::Stream;

  AttentionSet(const AttentionShape& shape, std::uint64_t seed, Stream stream)
      : shape_(check(shape)),
        layout_(tersekv::PageLayout::of<Codec, Codec>(kPageSize, shape.head_dim, true, 0, 0)),
        pages_of_copy_(pages_of(shape)),
        pool_(std::max<Index>(shape.copies * pages_of_copy_, 1)),
        sink_(1) {
    for (Index c = 0; c < shape.copies; ++c) {
      stores_.push_back(std::make_unique<Store>(
          std::vector<Index>(shape.lengths.size(), tersekv::kUnlimited), shape.kv_heads, layout_,
          tersekv::Shape{group(), shape.head_dim, 0, 1.0f / std::sqrt(float(shape.head_dim))},
          longest(), &pool_, stream));
    }
    lay_out(seed, stream);
    typename tersekv::cuda::BasicWorkspace<Runtime>::Needs needs;  // as a cache asks for it
    needs.heads = heads();
    needs.entries = stores_.front()->capacity();
    needs.group = group();
    needs.head_dim = shape.head_dim;
    needs.parts = tersekv::cuda::parts_wanted(heads(), group(), needs.entries / kPageSize,
                                              Runtime::multiprocessors());
    needs.observed = true;
    needs.logit_rows = heads();
    workspace_.reserve(needs);
    fill(seed, stream);
    Runtime::synchronize(stream);
  }

  void run(Index copy, const void* q, void* out, int mode, Stream stream) override {
    typename Step::Args work;
    auto& args = work.attention;
    args.heads = stores_.at(std::size_t(copy))->view();
    args.q = tersekv::nhd_view(static_cast<const Codec*>(q), shape_.sequences, shape_.q_heads,
                               shape_.head_dim);
    args.out = tersekv::nhd_view(static_cast<Codec*>(out), shape_.sequences, shape_.q_heads,
                                 shape_.head_dim);
    args.rows = args.end_row = args.num_rows = 1;
    args.alpha = (mode & kBias) != 0 ? 1.0f : 0.0f;
    args.write_logits = (mode & kLogits) != 0;
    args.biased = true;
    args.scratch =
        workspace_.scratch(stores_.front()->capacity(), group(), shape_.head_dim, args.num_rows);
    args.part_out = workspace_.part_out();
    args.part_max = workspace_.part_max();
    args.part_sum = workspace_.part_sum();
    const tersekv::cuda::Tuning tuning;
    work.observe = (mode & kRows) != 0;  // by Full, which has no use for it
    const int team = tersekv::cuda::choose_team(heads(), longest(), tersekv::cuda::kNumbersOfBlock,
                                                Runtime::multiprocessors(),
                                                tersekv::cuda::DeviceScratch::kMostTeamBlocks);
    tersekv::cuda::launch_attention<Runtime, Dims>(
        args, shape_.lengths, workspace_.parts(shape_.head_dim), tuning, stream);
    work.join = args.splits > 1;
    if (!work.join && !work.observe) return;
    const int blocks = static_cast<int>(heads()) * team;
    Runtime::template launch<Step>(tersekv::cuda::Grid{blocks}, team, workspace_.barrier_words(),
                                   stream, work,
                                   tersekv::cuda::block_threads<Runtime, Step>(blocks));
  }

  void probe(Index copy, Index blocks_per_multiprocessor, Stream stream) override {
    probe(copy, blocks_per_multiprocessor, false, stream);
  }
  std::uint32_t probe_sum(Index copy, Stream stream) override {
    sink_.zero(stream);
    probe(copy, 1, true, stream);
    std::int32_t sum = 0;
    Runtime::copy_out(&sum, sink_.data(), sizeof sum, stream);
    Runtime::synchronize(stream);
    return static_cast<std::uint32_t>(sum);
  }

  void export_to(Index copy, void* k, void* v, float* weights, Index padded,
                 Stream stream) override {
    if (padded < longest()) throw std::invalid_argument("padded: at least the longest head");
    typename ExportBody<Codec>::Args args;
    args.heads = stores_.at(std::size_t(copy))->view();
    args.k = static_cast<Codec*>(k);
    args.v = static_cast<Codec*>(v);
    args.weights = weights;
    args.padded = padded;
    args.blocks = blocks_of_head();
    Runtime::template launch<ExportBody<Codec>>(
        tersekv::cuda::Grid{args.blocks, static_cast<int>(heads())}, 1, nullptr, stream, args);
  }

  void scores(int what, Index head, Index member, float* to, Index count, Stream stream) override {
    const auto scratch =
        workspace_.scratch(stores_.front()->capacity(), group(), shape_.head_dim, 1);
    if (head < 0 || head >= heads() || member < 0 || member >= group() || count < 0 ||
        count > scratch.stride) {
      throw std::invalid_argument("scores: no such head, member or entry");
    }
    const float* from = what == 0 ? scratch.logits_of(head, 0) + member * scratch.stride
                                  : scratch.attention_of(head);
    Runtime::copy_out(to, from, static_cast<std::size_t>(count) * sizeof(float), stream);
    Runtime::synchronize(stream);
  }

  Index bytes(int what) const override {
    Index entries = 0;
    for (const Index length : shape_.lengths) entries += length;
    if (what == 0) return entries * shape_.head_dim * 2 * static_cast<Index>(sizeof(Codec));
    if (what == 1) return pages_of_copy_ * 2 * part_bytes();
    return pool_.bytes() + workspace_.bytes() + runs_.bytes();
  }

 private:
  using Store = tersekv::cuda::DeviceStore<Runtime, Codec, Codec>;
  using Step = tersekv::cuda::StepBody<tersekv::Full, Codec, Codec, Codec, Runtime::kTeamThreads>;

  static const AttentionShape& check(const AttentionShape& s) {
    const bool sound = s.copies >= 1 && s.sequences >= 1 && s.kv_heads >= 1 && s.q_heads >= 1 &&
                       s.q_heads % s.kv_heads == 0 && Dims::contains(s.head_dim) &&
                       s.lengths.size() == std::size_t(s.sequences * s.kv_heads) &&
                       *std::min_element(s.lengths.begin(), s.lengths.end()) >= 1;
    if (!sound) {
      throw std::invalid_argument(
          "attention set: expected at least one copy, sequence and entry "
          "of each head, whole groups, head_dim of " +
          Dims::list());
    }
    return s;
  }
  static Index pages_of(const AttentionShape& shape) {
    Index pages = 0;
    for (const Index length : shape.lengths) pages += (length + kPageSize - 1) / kPageSize;
    return pages;
  }
  /// Of a page the probe reads its keys and its values, which are as many bytes.
  Index part_bytes() const { return kPageSize * layout_.key_bytes; }
  Index runs_of_part() const { return std::max<Index>(part_bytes() / ProbeBody::kRunBytes, 1); }
  Index heads() const { return static_cast<Index>(shape_.lengths.size()); }
  Index group() const { return shape_.q_heads / shape_.kv_heads; }
  Index longest() const { return *std::max_element(shape_.lengths.begin(), shape_.lengths.end()); }
  int blocks_of_head() const {
    const Index wanted = 16 * Runtime::multiprocessors() / heads() + 1;
    return static_cast<int>(std::min(wanted, (longest() + kPageSize - 1) / kPageSize));
  }

  void probe(Index copy, Index blocks_per_multiprocessor, bool told, Stream stream) const {
    if (copy < 0 || copy >= shape_.copies || blocks_per_multiprocessor < 1) {
      throw std::invalid_argument("probe: no such copy, or no blocks");
    }
    ProbeBody::Args args;
    args.count = 2 * runs_of_part() * pages_of_copy_;
    args.runs = runs_.data() + copy * args.count;
    args.words = static_cast<int>(part_bytes() / runs_of_part() / 16);
    args.blocks = static_cast<int>(std::max<Index>(
        std::min(args.count, blocks_per_multiprocessor * Runtime::multiprocessors()), 1));
    args.told = told;
    args.sink = sink_.data();
    Runtime::template launch<ProbeBody>(tersekv::cuda::Grid{args.blocks}, 1, nullptr, stream, args);
  }

  /// Gives every head its pages, in random order, as in a pool that has been used for a while.
  void lay_out(std::uint64_t seed, Stream stream) {
    const auto free = pool_.free_pages();
    std::vector<std::byte*> idle(std::size_t(pool_.pages()));
    Runtime::copy_out(idle.data(), free.list, idle.size() * sizeof idle[0], stream);
    Runtime::synchronize(stream);
    std::mt19937_64 random(seed);
    std::shuffle(idle.begin(), idle.end(), random);
    std::vector<const std::byte*> runs;
    for (const auto& store : stores_) {
      const auto& view = store->view();
      std::vector<std::byte*> tables(std::size_t(heads() * view.most_pages), nullptr);
      std::vector<tersekv::HeadState> states;
      for (Index h = 0; h < heads(); ++h) {
        const Index length = shape_.lengths[std::size_t(h)];
        for (Index p = 0; p < view.pages_for(length); ++p) {
          std::byte* page = idle.back();
          idle.pop_back();
          tables[std::size_t(h * view.most_pages + p)] = page;
          for (const Index part : {Index{0}, layout_.values_at}) {
            for (Index r = 0; r < runs_of_part(); ++r) {
              runs.push_back(page + part + r * (part_bytes() / runs_of_part()));
            }
          }
        }
        tersekv::HeadState state;
        state.length = length;
        state.note_append(length);
        state.note_compression();
        states.push_back(state);
      }
      Runtime::copy_in(view.tables, tables.data(), tables.size() * sizeof tables[0], stream);
      Runtime::copy_in(view.states, states.data(), states.size() * sizeof states[0], stream);
      Runtime::synchronize(stream);
    }
    const auto left = static_cast<std::int32_t>(idle.size());  // none
    Runtime::copy_in(free.count, &left, sizeof left, stream);
    runs_ = tersekv::cuda::Buffer<Runtime, const std::byte*>(static_cast<Index>(runs.size()));
    runs_.copy_in(runs, stream);
    Runtime::synchronize(stream);
  }

  void fill(std::uint64_t seed, Stream stream) {
    for (std::size_t c = 0; c < stores_.size(); ++c) {
      typename FillBody<Codec>::Args args;
      args.heads = stores_[c]->view();
      args.seed = seed + 2 * c;
      args.blocks = blocks_of_head();
      Runtime::template launch<FillBody<Codec>>(
          tersekv::cuda::Grid{args.blocks, static_cast<int>(heads())}, 1, nullptr, stream, args);
    }
  }

  AttentionShape shape_;
  tersekv::PageLayout layout_;
  Index pages_of_copy_;
  tersekv::cuda::BasicPagePool<Runtime> pool_;  // outlives the stores
  std::vector<std::unique_ptr<Store>> stores_;
  tersekv::cuda::BasicWorkspace<Runtime> workspace_;
  tersekv::cuda::Buffer<Runtime, const std::byte*> runs_;  // of each page in use
  tersekv::cuda::Buffer<Runtime, std::int32_t> sink_;
};

}  // namespace tersekv_bench
