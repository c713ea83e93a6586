// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tersekv/cuda/body/heads.hpp"
#include "tersekv/cuda/errors.hpp"
#include "tersekv/errors.hpp"

namespace tersekv::cuda {

/// A block of device memory.
template <class Runtime, class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(Index count)
      : data_(count == 0 ? nullptr : static_cast<T*>(Runtime::allocate(bytes_of(count)))),
        count_(count) {}
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) Runtime::deallocate(data_);
  }

  T* data() const { return data_; }
  Index count() const { return count_; }
  Index bytes() const { return count_ * static_cast<Index>(sizeof(T)); }
  void zero(typename Runtime::Stream stream) {
    if (data_ != nullptr) Runtime::zero(data_, bytes_of(count_), stream);
  }
  /// Asynchronous where the host's memory is pinned.
  void copy_in(const std::vector<T>& from, typename Runtime::Stream stream) {
    Runtime::copy_in(data_, from.data(), bytes_of(static_cast<Index>(from.size())), stream);
  }

 private:
  static std::size_t bytes_of(Index count) { return static_cast<std::size_t>(count) * sizeof(T); }
  T* data_ = nullptr;
  Index count_ = 0;
};

/// Fixed-size pages in device memory, and on the device the list of idle ones: kernels take and
/// give pages without the host. Caches that share a pool must need pages of the same size, and
/// their calls must be ordered (one stream, or events).
template <class Runtime>
class BasicPagePool {
 public:
  /// `pages` pages, allocated when the first cache says how large they are.
  explicit BasicPagePool(Index pages) : pages_(pages) {
    detail::require(pages >= 1 && pages <= kMostTokens, "pages", "at least 1 and below 2^31",
                    pages);
  }
  BasicPagePool(const BasicPagePool&) = delete;
  BasicPagePool& operator=(const BasicPagePool&) = delete;
  ~BasicPagePool() {
    if (failed_ != nullptr) Runtime::deallocate_visible(failed_);
  }

  /// Fixes the size of a page, once, and allocates. Synchronises the first time. Throws
  /// std::invalid_argument where the size differs from before, OutOfMemory.
  void set_page_bytes(Index bytes, typename Runtime::Stream stream) {
    if (page_bytes_ == bytes) return;
    if (page_bytes_ != 0) {
      detail::refuse({"page of a shared pool (head_dim, codecs, page_size, statistics)"},
                     {page_bytes_, " bytes, as before"}, {bytes});
    }
    Buffer<Runtime, std::byte> memory(pages_ * bytes);
    Buffer<Runtime, std::byte*> list(pages_);
    Buffer<Runtime, std::int32_t> count(1);
    if (failed_ == nullptr) {
      failed_ = static_cast<std::int32_t*>(Runtime::allocate_visible(sizeof(std::int32_t)));
    }
    *failed_ = 0;
    std::vector<std::byte*> idle;  // what is copied is there until the stream was waited for
    const std::vector<std::int32_t> all{static_cast<std::int32_t>(pages_)};
    for (Index p = pages_ - 1; p >= 0; --p) idle.push_back(memory.data() + p * bytes);
    memory.zero(stream);  // attention reads whole tiles, past the last entry of a page
    list.copy_in(idle, stream);
    count.copy_in(all, stream);
    Runtime::synchronize(stream);
    memory_ = std::move(memory);
    list_ = std::move(list);
    count_ = std::move(count);
    page_bytes_ = bytes;
  }

  FreePages free_pages() const { return {list_.data(), count_.data(), failed_}; }
  Index pages() const { return pages_; }
  Index page_bytes() const { return page_bytes_; }
  /// Everything the pool holds, pages lent to caches included.
  Index bytes() const { return memory_.bytes() + list_.bytes() + count_.bytes() + 4; }
  /// Pages that no head has. Synchronises.
  Index synchronize_idle_pages(typename Runtime::Stream stream = {}) const {
    std::int32_t idle = 0;
    Runtime::copy_out(&idle, count_.data(), sizeof idle, stream);
    Runtime::synchronize(stream);
    return idle;
  }

  /// Throws OutOfPages if some head has found none since the last time. Does not wait: what is
  /// still under way is told later.
  void check() {
    if (failed_ == nullptr) return;
    const std::int32_t failed = *static_cast<volatile std::int32_t*>(failed_);
    const std::int32_t since = failed - std::exchange(told_, failed);
    if (since != 0) throw OutOfPages(since);
  }

 private:
  Index pages_, page_bytes_ = 0;
  Buffer<Runtime, std::byte> memory_;
  Buffer<Runtime, std::byte*> list_;
  Buffer<Runtime, std::int32_t> count_;
  // Heads that found no page: memory of the host that kernels add to, and nobody else writes.
  std::int32_t* failed_ = nullptr;
  std::int32_t told_ = 0;  // of these
};

/// What a launch works with beside the cache itself. Layers that run one after the other on one
/// stream share one.
///
/// No output waits for what a policy does in a decode step, so it may have a stream of its own
/// (`run_policies_on`), and be done while the engine goes on with the layer: then the next layer
/// needs another workspace, as this one is at work. Two that layers take in turns are enough.
template <class Runtime>
class BasicWorkspace {
 public:
  using Stream = typename Runtime::Stream;
  BasicWorkspace() = default;
  BasicWorkspace(const BasicWorkspace&) = delete;
  BasicWorkspace& operator=(const BasicWorkspace&) = delete;

  struct Needs {
    Index heads = 0;    ///< of a launch
    Index entries = 0;  ///< of a head
    Index group = 0, head_dim = 0;
    Index rows = 1;        ///< whose attention is observed in one launch, when all heads take part
    Index parts = 0;       ///< partial states of query rows
    Index logit_rows = 0;  ///< heads times rows whose logits go through memory in one launch
    bool observed = false;
  };

  /// Room for a cache that needs this as well. May allocate, and free what graphs captured before
  /// point at: make all caches of a workspace first.
  void reserve(const Needs& needs) {
    if (at_work_) Runtime::synchronize_device();  // in what may be freed
    const Index rows = needs.heads * needs.rows * needs.group;
    grow(floats_, needs.heads * needs.entries);
    grow(vectors_, needs.heads * Scratch::kRows * needs.head_dim);
    grow(slots_, needs.heads * Scratch::kSlotLists * needs.entries);
    grow(attention_, needs.observed ? needs.heads * needs.entries : 0);
    grow(logits_, needs.logit_rows * needs.group * needs.entries);
    grow(queries_, needs.logit_rows * needs.group * needs.head_dim);
    grow(lse_, std::max(rows, needs.logit_rows * needs.group));
    grow(part_out_, needs.parts * needs.head_dim);
    grow(part_max_, needs.parts);
    grow(part_sum_, needs.parts);
    grow(exchange_, needs.heads * DeviceScratch::kMostTeamBlocks * DeviceScratch::kExchangeBytes);
    grow_zeroed(barrier_words_, needs.heads * kTeamSizes);
  }

  /// From now on, what policies observe and compress in decode steps (a token a sequence, right
  /// after a compression) is done on `stream`, after the attention that they are shown;
  /// std::nullopt: on the stream of the call, as at first. Every call of a cache on this workspace
  /// waits for it by itself, so results are the same, to the bit. `stream` must be there until
  /// another is set. May allocate.
  ///
  /// Heads keep the pages that such steps leave free (one, where a budget is whole pages; those of
  /// a policy's interval) until a call that compresses on its own stream (a prompt, `compress`),
  /// `rewind` or `clear`: a shared pool must have as many more.
  ///
  /// Of graphs nobody waits by himself: `wait` must be called before a capture, before its end, as
  /// `stream` is captured along, and before a graph is launched that holds calls of these caches. A
  /// capture that was given up leaves a wait behind that fails: set the stream again. CUDA's
  /// default stream waits for all others, and they for it, unless they were made
  /// cudaStreamNonBlocking.
  void run_policies_on(std::optional<Stream> stream) {
    if (stream.has_value() && fork_ == nullptr) fork_ = std::make_unique<Fork>();
    if (at_work_ && works_on_policies_) fork_->done.record(*policies_);
    works_on_policies_ = false;
    policies_ = stream;
  }
  const std::optional<Stream>& policies() const { return policies_; }
  /// What follows on `stream` comes after what policies have been given to do on theirs. Once:
  /// other streams that go on with these caches must be ordered after this one, as always.
  void wait(Stream stream) {
    if (!at_work_) return;
    fork_->done.hold(stream);
    at_work_ = false;
  }
  /// launch(on), on the stream of the policies, which must be set: after what is on `stream`, and
  /// what waits comes after it.
  template <class Launch>
  void fork(Stream stream, Launch&& launch) {
    fork_->begin.record(stream);
    fork_->begin.hold(*policies_);
    at_work_ = works_on_policies_ = true;
    launch(*policies_);
    fork_->done.record(*policies_);
  }

  DeviceScratch scratch(Index stride, Index group, Index head_dim, Index rows) const {
    DeviceScratch s;
    s.stride = stride;
    s.floats = floats_.data();
    s.vectors = vectors_.data();
    s.slots = slots_.data();
    s.attention = attention_.data();
    s.logits = logits_.data();
    s.queries = queries_.data();
    s.lse = lse_.data();
    s.exchange = exchange_.data();
    s.head_dim = head_dim;
    s.vector_room = Scratch::kRows * head_dim;
    s.group = group;
    s.rows = rows;
    return s;
  }
  float* part_out() const { return part_out_.data(); }
  float* part_max() const { return part_max_.data(); }
  float* part_sum() const { return part_sum_.data(); }
  /// Partial states that there is room for; caches of other dimensions may have asked for more.
  Index parts(Index head_dim) const {
    return std::min(part_max_.count(), part_out_.count() / head_dim);
  }
  /// Rows of each of `heads` heads whose logits, queries and lse there is room for.
  Index logit_rows(Index heads, Index group, Index entries, Index head_dim) const {
    const Index of_a_row = heads * group;
    return std::min({logits_.count() / (of_a_row * entries),
                     queries_.count() / (of_a_row * head_dim), lse_.count() / of_a_row});
  }
  std::uint32_t* barrier_words() const { return barrier_words_.data(); }

  Index bytes() const {
    return floats_.bytes() + vectors_.bytes() + slots_.bytes() + attention_.bytes() +
           logits_.bytes() + queries_.bytes() + lse_.bytes() + part_out_.bytes() +
           part_max_.bytes() + part_sum_.bytes() + exchange_.bytes() + barrier_words_.bytes();
  }

 private:
  template <class T>
  static void grow(Buffer<Runtime, T>& buffer, Index count) {
    if (buffer.count() < count) buffer = Buffer<Runtime, T>(count);
  }
  template <class T>
  static void grow_zeroed(Buffer<Runtime, T>& buffer, Index count) {
    if (buffer.count() >= count) return;
    Buffer<Runtime, T> zeros(count);
    zeros.zero({});
    Runtime::synchronize({});
    buffer = std::move(zeros);
  }

  struct Fork {
    typename Runtime::Event begin, done;
  };
  std::unique_ptr<Fork> fork_;
  std::optional<Stream> policies_;
  bool at_work_ = false;            // and nobody has waited for it
  bool works_on_policies_ = false;  // and not on a stream set before, which may be gone
  Buffer<Runtime, float> floats_, vectors_, attention_, logits_, queries_, lse_, part_out_,
      part_max_, part_sum_;
  Buffer<Runtime, std::int32_t> slots_;
  Buffer<Runtime, std::byte> exchange_;
  Buffer<Runtime, std::uint32_t> barrier_words_;
};

}  // namespace tersekv::cuda
