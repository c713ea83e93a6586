// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "tersekv/cuda/body/clear.hpp"
#include "tersekv/cuda/body/copy.hpp"
#include "tersekv/cuda/body/rewind.hpp"
#include "tersekv/cuda/memory.hpp"
#include "tersekv/head_store.hpp"

namespace tersekv::cuda {

/// The memory of a cache on a device: states, page tables and registers of all heads, and what the
/// host knows of their lengths without asking: upper bounds.
template <class Runtime, class KeyCodec, class ValueCodec>
class DeviceStore {
 public:
  using Stream = typename Runtime::Stream;

  /// Heads hold at most `most_entries` entries. `shared` may be null: the store then has a pool of
  /// its own, with pages for all. Synchronises.
  DeviceStore(const std::vector<Index>& budgets, Index num_kv_heads, const PageLayout& layout,
              const Shape& shape, Index most_entries, BasicPagePool<Runtime>* shared, Stream stream)
      : mirror_(budgets.size()),
        bounds_(budgets.size(), 0),
        learned_(budgets.size()),
        mirror_held_(budgets.size(), 0) {
    const auto heads = static_cast<Index>(budgets.size());
    view_.layout = layout.in_one_piece();
    view_.shape = shape;
    view_.num_kv_heads = num_kv_heads;
    view_.most_pages = view_.pages_for(most_entries);
    if (shared == nullptr) {
      own_pool_ = std::make_unique<BasicPagePool<Runtime>>(heads * view_.most_pages);
    }
    pool_ = shared == nullptr ? own_pool_.get() : shared;
    pool_->set_page_bytes(layout.page_bytes, stream);
    tables_ = Buffer<Runtime, std::byte*>(heads * view_.most_pages);
    states_ = Buffer<Runtime, HeadState>(heads);
    held_ = Buffer<Runtime, std::int32_t>(heads);
    registers_ = Buffer<Runtime, float>(heads * layout.registers);
    for (Index h = 0; h < heads; ++h) mirror_[at(h)].budget = budgets[at(h)];
    states_.copy_in(mirror_, stream);
    registers_.zero(stream);
    held_.zero(stream);
    Runtime::synchronize(stream);
    view_.tables = tables_.data();
    view_.held = held_.data();
    view_.states = states_.data();
    view_.registers = registers_.data();
    view_.free_pages = pool_->free_pages();
  }
  DeviceStore(DeviceStore&&) = default;
  DeviceStore& operator=(DeviceStore&&) = delete;
  /// Pages go back to a shared pool. Waits for the device where they do.
  ~DeviceStore() {
    if (own_pool_ != nullptr || states_.data() == nullptr) return;
    try {
      Runtime::synchronize_device();  // whatever stream was at work
      clear(0, heads(), {});
      Runtime::synchronize({});
    } catch (...) {  // the device is gone, and its memory with it
    }
  }

  Index heads() const { return static_cast<Index>(mirror_.size()); }
  const DeviceHeads<KeyCodec, ValueCodec>& view() const { return view_; }
  const PageLayout& layout() const { return view_.layout; }
  BasicPagePool<Runtime>& pool() const { return *pool_; }
  Index capacity() const { return view_.most_pages << view_.layout.shift; }

  /// States as of the last `synchronize`, beside what the host has counted since: tokens.
  const HeadState& state(Index head) const { return mirror_[at(head)]; }
  /// The head has no more entries than this.
  Index bound(Index head) const { return bounds_[at(head)]; }
  std::vector<Index> bounds(Index first, Index count) const {
    return {bounds_.begin() + first, bounds_.begin() + first + count};
  }
  Index longest(Index first, Index count) const {
    return *std::max_element(bounds_.begin() + first, bounds_.begin() + first + count);
  }

  Counts total_counts() const { return tersekv::detail::total_counts(mirror_); }
  /// As of the last `synchronize`: of lengths and tokens as they were then.
  double keep_ratio() const { return tersekv::detail::keep_ratio(learned_); }

  void note_append(Index head, Index tokens) {
    bounds_[at(head)] += tokens;
    mirror_[at(head)].note_append(tokens);
  }
  /// After a compression that leaves at most `most` entries.
  void note_compression(Index head, Index most) {
    bounds_[at(head)] = std::min(bounds_[at(head)], most);
    mirror_[at(head)].note_compression();
  }

  /// Takes the latest tokens of `count` heads back. Asynchronous.
  void rewind(Index first, Index count, Index tokens, Stream stream) {
    using Body = RewindBody<KeyCodec, ValueCodec, 32>;
    Runtime::template launch<Body>(Grid{static_cast<int>(count)}, 1, nullptr, stream,
                                   typename Body::Args{view_, first, tokens});
    for (Index h = first; h < first + count; ++h) {
      const Index taken = std::min(tokens, mirror_[at(h)].most_rewound());
      mirror_[at(h)].note_rewind(taken);
      bounds_[at(h)] -= taken;
    }
  }

  /// As if nothing had ever been appended to `count` heads. Asynchronous.
  void clear(Index first, Index count, Stream stream) {
    using Body = ClearBody<KeyCodec, ValueCodec, 32>;
    Runtime::template launch<Body>(Grid{static_cast<int>(count)}, 1, nullptr, stream,
                                   typename Body::Args{view_, first});
    for (Index h = first; h < first + count; ++h) {
      const Index budget = mirror_[at(h)].budget;
      mirror_[at(h)] = HeadState{};
      mirror_[at(h)].budget = budget;
      bounds_[at(h)] = 0;
      learned_[at(h)] = {};
      mirror_held_[at(h)] = 0;
    }
  }

  /// `count` heads from `first` on, those of whole sequences, then hold what those of the sequence
  /// of head `source` do. Asynchronous.
  void copy(Index source, Index first, Index count, Stream stream) {
    clear(first, count, stream);
    using Body = CopySequenceBody<KeyCodec, ValueCodec, 256>;
    Runtime::template launch<Body>(Grid{static_cast<int>(count)}, 1, nullptr, stream,
                                   typename Body::Args{view_, source, first});
    for (Index h = 0; h < count; ++h) {
      const Index from = source + h % view_.num_kv_heads;
      mirror_[at(first + h)] = mirror_[at(from)];
      bounds_[at(first + h)] = bounds_[at(from)];
      learned_[at(first + h)] = learned_[at(from)];
      mirror_held_[at(first + h)] =
          static_cast<std::int32_t>(view_.pages_for(mirror_[at(from)].length));
    }
  }

  /// Waits for the stream, and learns the true lengths.
  void synchronize(Stream stream) {
    Runtime::copy_out(mirror_.data(), states_.data(), static_cast<std::size_t>(states_.bytes()),
                      stream);
    Runtime::copy_out(mirror_held_.data(), held_.data(), static_cast<std::size_t>(held_.bytes()),
                      stream);
    Runtime::synchronize(stream);
    for (Index h = 0; h < heads(); ++h) {
      bounds_[at(h)] = mirror_[at(h)].length;
      learned_[at(h)] = {mirror_[at(h)].length, mirror_[at(h)].seen};
    }
  }

  /// Copies a head into `host`, whose pages and state are then as the device's. After
  /// `synchronize`.
  void copy_out(Index head, tersekv::detail::HeadStore<KeyCodec, ValueCodec>& host,
                Stream stream) const {
    const HeadState& state = mirror_[at(head)];
    host.reserve(head, state.length);
    std::vector<std::byte*> table(static_cast<std::size_t>(view_.pages_for(state.length)));
    if (!table.empty()) {
      Runtime::copy_out(table.data(), view_.table(head), table.size() * sizeof(std::byte*), stream);
    }
    Runtime::synchronize(stream);
    for_each_piece(head, host, table, [&](std::byte* here, std::byte* on_device, Index bytes) {
      Runtime::copy_out(here, on_device, at(bytes), stream);
    });
    if (layout().registers > 0) {
      Runtime::copy_out(host.registers(head), view_.registers + head * layout().registers,
                        static_cast<std::size_t>(4 * layout().registers), stream);
    }
    Runtime::synchronize(stream);
    host.state(head) = state;
  }

  /// The reverse, for an empty head; pages are taken from the pool. Synchronises. Throws
  /// OutOfPages.
  void copy_in(Index head, tersekv::detail::HeadStore<KeyCodec, ValueCodec>& host, Stream stream) {
    const HeadState& state = host.state(head);
    const auto pages = static_cast<std::size_t>(view_.pages_for(state.length));
    const FreePages& free = view_.free_pages;
    std::int32_t idle = 0;
    Runtime::copy_out(&idle, free.count, sizeof idle, stream);
    Runtime::synchronize(stream);
    if (static_cast<std::size_t>(idle) < pages) throw OutOfPages(1);
    std::vector<std::byte*> table(pages);
    idle -= static_cast<std::int32_t>(pages);
    if (pages > 0) {
      Runtime::copy_out(table.data(), free.list + idle, pages * sizeof(std::byte*), stream);
      Runtime::synchronize(stream);
      Runtime::copy_in(free.count, &idle, sizeof idle, stream);
      Runtime::copy_in(view_.table(head), table.data(), pages * sizeof(std::byte*), stream);
    }
    for_each_piece(head, host, table, [&](std::byte* here, std::byte* on_device, Index bytes) {
      Runtime::copy_in(on_device, here, at(bytes), stream);
    });
    if (layout().registers > 0) {
      Runtime::copy_in(view_.registers + head * layout().registers, host.registers(head),
                       static_cast<std::size_t>(4 * layout().registers), stream);
    }
    const auto held = static_cast<std::int32_t>(pages);
    Runtime::copy_in(view_.states + head, &state, sizeof state, stream);
    Runtime::copy_in(view_.held + head, &held, sizeof held, stream);
    Runtime::synchronize(stream);
    mirror_[at(head)] = state;
    mirror_held_[at(head)] = held;
    bounds_[at(head)] = state.length;
    learned_[at(head)] = {state.length, state.seen};
  }

  /// As of the last `synchronize`; without the workspace. Exact in total for a pool of the store's
  /// own, for a shared one the pages that the heads hold.
  MemoryUsage memory() const {
    MemoryUsage usage;
    const Index held = std::accumulate(mirror_held_.begin(), mirror_held_.end(), Index{0});
    for (const HeadState& state : mirror_) {
      const Index n = state.length;
      usage.keys += n * layout().key_bytes;
      usage.values += n * layout().value_bytes;
      usage.weights += layout().has_weights ? 4 * n : 0;
      usage.positions += 4 * n;
      usage.statistics += 4 * n * layout().statistics;
    }
    usage.slack =
        (own_pool_ != nullptr ? own_pool_->pages() : held) * layout().page_bytes - usage.total();
    usage.bookkeeping = tables_.bytes() + held_.bytes() + states_.bytes() + registers_.bytes();
    if (own_pool_ != nullptr) {
      usage.bookkeeping += own_pool_->bytes() - own_pool_->pages() * layout().page_bytes;
    }
    return usage;
  }

 private:
  /// Of a head, at the same moment.
  struct Learned {
    Index length = 0, seen = 0;
  };

  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  /// f(on the host, on the device, bytes) for the pieces of a head's pages that lie together on
  /// both: the host's pages have their columns elsewhere.
  template <class F>
  void for_each_piece(Index head, const tersekv::detail::HeadStore<KeyCodec, ValueCodec>& host,
                      const std::vector<std::byte*>& table, F&& f) const {
    for (std::size_t p = 0; p < table.size(); ++p) {
      const auto index = static_cast<Index>(p);
      f(host.page(head, index), table[p], layout().columns_at);
      for (Index c = 0; c < layout().columns(); ++c) {
        f(host.column(head, index, c),
          table[p] + layout().positions_at + c * layout().column_stride, layout().column_bytes);
      }
    }
  }

  std::unique_ptr<BasicPagePool<Runtime>> own_pool_;
  BasicPagePool<Runtime>* pool_ = nullptr;
  Buffer<Runtime, std::byte*> tables_;
  Buffer<Runtime, std::int32_t> held_;
  Buffer<Runtime, HeadState> states_;
  Buffer<Runtime, float> registers_;
  DeviceHeads<KeyCodec, ValueCodec> view_;
  std::vector<HeadState> mirror_;
  std::vector<Index> bounds_;
  std::vector<Learned> learned_;
  std::vector<std::int32_t> mirror_held_;
};

}  // namespace tersekv::cuda
