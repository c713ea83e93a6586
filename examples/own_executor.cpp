// SPDX-License-Identifier: Apache-2.0
// Threads of your own: the layers of a model share a pool of threads, and one of pages.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <iostream>
#include <mutex>
#include <random>
#include <tersekv/tersekv.hpp>
#include <thread>
#include <vector>

using tersekv::BFloat16;
using tersekv::Index;

// Threads that sleep between calls. The caller is worker 0.
class ThreadPool {
 public:
  explicit ThreadPool(int workers) : next_(static_cast<std::size_t>(workers)) {
    for (int w = 1; w < workers; ++w) threads_.emplace_back([this, w] { serve(w); });
  }
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int workers() const { return static_cast<int>(next_.size()); }

  // task(i, worker) for i in [0, n): returns when all are done.
  void run(Index n, const std::function<void(Index, int)>& task) {
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      count_ = n;
      for (int w = 0; w < workers(); ++w) next_of(w) = w;
      busy_ = workers();
      ++calls_;
    }
    wake_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  std::atomic<Index>& next_of(int worker) { return next_[static_cast<std::size_t>(worker)]; }

  // Every workers()-th task is a worker's own, in every call: its caches know the heads. Who is
  // done takes from the others.
  void work(int worker) {
    for (int w = 0; w < workers(); ++w) {
      std::atomic<Index>& next = next_of((worker + w) % workers());
      for (Index i = next.fetch_add(workers()); i < count_; i = next.fetch_add(workers())) {
        (*task_)(i, worker);
      }
    }
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
  void serve(int worker) {
    for (Index seen = 0;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || calls_ != seen; });
        if (stop_) return;
        seen = calls_;
      }
      work(worker);
    }
  }

  std::vector<std::atomic<Index>> next_;  // of each worker's tasks
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(Index, int)>* task_ = nullptr;
  Index count_ = 0, calls_ = 0;
  int busy_ = 0;
  bool stop_ = false;
};

// What a cache holds a copy of: a handle to the threads, which outlive it.
struct OnThreads {
  ThreadPool* threads;
  int workers() const { return threads->workers(); }
  template <class F>
  void run(Index n, F&& f) const {
    threads->run(n, std::ref(f));
  }
};

int main() {  // four layers: 10 query heads on 5 KV heads of 64 elements
  const auto config = [](int layer) {
    return tersekv::CacheConfig{.num_q_heads = 10,
                                .num_kv_heads = 5,
                                .head_dim = 64,
                                .budget = layer < 2 ? 128 : 64,
                                .layer = layer};
  };
  ThreadPool threads(3);
  tersekv::PagePool pages;  // both outlive the caches
  std::vector<tersekv::KVCache<tersekv::ZSMerge, BFloat16, BFloat16, OnThreads>> layers;
  std::vector<tersekv::KVCache<tersekv::ZSMerge, BFloat16>> alone;  // the same on one thread
  for (int layer = 0; layer < 4; ++layer) {
    layers.emplace_back(config(layer), tersekv::make_zsmerge(), pages, OnThreads{&threads});
    alone.emplace_back(config(layer));
  }

  std::mt19937 random(1);
  std::vector<float> q(10 * 64), k(5 * 64), v(5 * 64), out(10 * 64), expected(10 * 64);
  const auto row = [](auto& x) { return tersekv::nhd_view(x.data(), 1, x.size() / 64, 64); };
  bool same = true;
  for (int token = 0; token < 300; ++token) {
    for (std::size_t layer = 0; layer < 4; ++layer) {
      for (auto* x : {&q, &k, &v})
        for (float& element : *x) element = static_cast<float>(random()) * 0x1p-31f - 1;
      layers[layer].extend(row(q), row(k), row(v), row(out));
      alone[layer].extend(row(q), row(k), row(v), row(expected));
      same = same && out == expected;
    }
  }
  for (const auto& layer : layers) {
    std::cout << layer.length(0, 0) << " entries of " << layer.tokens_seen(0) << "\n";
  }
  std::cout << pages.pages() << " pages, " << pages.idle_pages() << " of them idle\n"
            << "as on one thread: " << (same ? "to the bit" : "no") << "\n";
  return same ? 0 : 1;
}
