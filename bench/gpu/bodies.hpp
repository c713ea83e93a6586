// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "tersekv/cuda/body/heads.hpp"
#include "tersekv/element.hpp"

// Kernels of the benchmarks themselves, written as the library's are (body/context.hpp), so that
// the tests can run them on the host.

namespace tersekv_bench {

using tersekv::Index;

/// A number's random bits by its place alone, so that filling needs no state.
TERSEKV_HD inline std::uint32_t random_bits(std::uint64_t seed, std::uint64_t at) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + at * 0xbf58476d1ce4e5b9u + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32);
}
/// About normal, mean 0, deviation 1: the sum of four bytes.
TERSEKV_HD inline float random_normal(std::uint64_t seed, std::uint64_t at) {
  const std::uint32_t bits = random_bits(seed, at);
  const std::uint32_t sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24);
  return (static_cast<float>(sum) - 510.0f) * (1.0f / 147.8f);
}
TERSEKV_HD inline float random_uniform(std::uint64_t seed, std::uint64_t at) {
  return static_cast<float>(random_bits(seed, at) >> 8) * 0x1p-24f;
}

/// Random numbers: `scale` times normal ones, or uniform in [offset, offset + scale).
template <class T>
struct RandomBody {
  struct Args {
    T* to = nullptr;
    Index count = 0;
    std::uint64_t seed = 0;
    bool uniform = false;
    float scale = 1.0f, offset = 0.0f;
    int blocks = 1;
  };
  static constexpr int kThreads = 128;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const Index lanes = Index{args.blocks} * context.threads();
    for (Index i = Index{context.block().x} * context.threads() + context.thread(); i < args.count;
         i += lanes) {
      const auto at = static_cast<std::uint64_t>(i);
      const float x = args.uniform ? random_uniform(args.seed, at) : random_normal(args.seed, at);
      args.to[i] = tersekv::from_float<T>(args.offset + args.scale * x);
    }
  }
};

/// Every live entry of every head: random key and value, and a weight between 1 and 64. The grid is
/// (blocks of a head, heads).
template <class Codec>
struct FillBody {
  struct Args {
    tersekv::cuda::DeviceHeads<Codec, Codec> heads;
    std::uint64_t seed = 0;
    int blocks = 1;
  };
  static constexpr int kThreads = 128;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const Index h = context.block().y, page_size = args.heads.layout.page_size;
    const auto head = args.heads.head(h, {});
    const Index n = head.length(), dim = head.head_dim();
    const std::uint64_t of_head = static_cast<std::uint64_t>(h) << 40;
    const Index pages = args.heads.pages_for(n);
    for (Index page = context.block().x; page < pages; page += args.blocks) {
      const Index first = page * page_size;
      for (Index i = context.thread(); i < page_size * dim; i += context.threads()) {
        const Index slot = first + i % page_size, j = i / page_size;  // keys lie so
        if (slot >= n) continue;
        const auto at = of_head + static_cast<std::uint64_t>(2 * (slot * dim + j));
        head.set_key(slot, j, random_normal(args.seed, at));
      }
      for (Index i = context.thread(); i < page_size * dim; i += context.threads()) {
        const Index slot = first + i / dim, j = i % dim;
        if (slot >= n) continue;
        const auto at = of_head + static_cast<std::uint64_t>(2 * (slot * dim + j) + 1);
        head.set_value(slot, j, random_normal(args.seed, at));
      }
      for (Index i = context.thread(); i < page_size; i += context.threads()) {
        if (first + i >= n) continue;
        const auto at = of_head + static_cast<std::uint64_t>(first + i);
        const float x = random_uniform(args.seed + 1, at);
        head.set_weight(first + i, 1.0f + 63.0f * x * x * x);  // most are small
      }
    }
  }
};

/// The entries as others keep them: [heads, padded, head_dim]. The grid is as FillBody's.
template <class Codec>
struct ExportBody {
  struct Args {
    tersekv::cuda::DeviceHeads<Codec, Codec> heads;
    Codec *k = nullptr, *v = nullptr;
    float* weights = nullptr;
    Index padded = 0;
    int blocks = 1;
  };
  static constexpr int kThreads = 128;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const Index h = context.block().y;
    const auto head = args.heads.head(h, {});
    const Index n = head.length(), dim = head.head_dim();
    const Index lanes = Index{args.blocks} * context.threads();
    const Index lane = Index{context.block().x} * context.threads() + context.thread();
    for (Index i = lane; i < args.padded * dim; i += lanes) {
      const Index slot = i / dim, j = i % dim;
      const Index to = h * args.padded * dim + i;
      const bool live = slot < n;
      args.k[to] = tersekv::from_float<Codec>(live ? head.key(slot, j) : 0.0f);
      args.v[to] = tersekv::from_float<Codec>(live ? head.value(slot, j) : 0.0f);
    }
    for (Index i = lane; i < args.padded; i += lanes) {
      args.weights[h * args.padded + i] = i < n ? head.weight(i) : 1.0f;
    }
  }
};

/// Reads `count` runs of `words` 16-byte words, best of kRunBytes each, and keeps nothing: as fast
/// as these bytes can be read from where they lie.
struct ProbeBody {
  struct alignas(16) Word {
    std::uint32_t part[4];
  };
  struct Args {
    const std::byte* const* runs = nullptr;
    Index count = 0;
    int words = 0;
    int blocks = 1;
    bool told = false;  ///< what was read is added to the sink, for a test
    std::int32_t* sink = nullptr;
  };
  static constexpr int kThreads = 256;
  static constexpr int kInFlight = 4;  // loads of a thread
  static constexpr int kRunBytes = 16 * kThreads * kInFlight;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    std::uint32_t sum = 0;
    for (Index r = context.block().x; r < args.count; r += args.blocks) {
      const Word* from = reinterpret_cast<const Word*>(args.runs[r]);
      int i = context.thread();
      read<kInFlight>(from, args.words, i, sum);
      read<kInFlight / 2>(from, args.words, i, sum);  // shorter runs
      read<1>(from, args.words, i, sum);
    }
    // Practically never when timed, but the compiler cannot know, so the loads stay.
    if (args.told || sum == 0x5bd1e995u) {
      context.fetch_add(args.sink, static_cast<std::int32_t>(sum));
    }
  }

 private:
  /// Words i, i + kThreads, ... of `words`, as many at a time as are in flight, while there are.
  template <int InFlight>
  static TERSEKV_HD void read(const Word* from, int words, int& i, std::uint32_t& sum) {
    for (; i + (InFlight - 1) * kThreads < words; i += InFlight * kThreads) {
      Word word[InFlight];
      TERSEKV_UNROLL
      for (int m = 0; m < InFlight; ++m) word[m] = load(from + i + m * kThreads);
      TERSEKV_UNROLL
      for (int m = 0; m < InFlight; ++m) sum += folded(word[m]);
    }
  }
  static TERSEKV_HD std::uint32_t folded(const Word& word) {
    return word.part[0] + word.part[1] + word.part[2] + word.part[3];
  }
  /// Past the first-level cache: nothing is read twice.
  static TERSEKV_HD Word load(const Word* from) {
#if defined(__CUDA_ARCH__)
    Word word;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(word.part[0]), "=r"(word.part[1]), "=r"(word.part[2]), "=r"(word.part[3])
        : "l"(from));
    return word;
#else
    return *from;
#endif
  }
};

/// One block that takes its time.
struct SpinBody {
  struct Args {
    Index turns = 0;
    std::uint32_t* sink = nullptr;
  };
  static constexpr int kThreads = 32;
  static constexpr std::size_t kSharedBytes = 0;

  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    std::uint32_t x = static_cast<std::uint32_t>(context.thread());
    for (Index i = 0; i < args.turns; ++i) x = (x ^ (x >> 7)) * 1664525u + 1013904223u;
    if (x == 0x5bd1e995u && args.sink != nullptr) *args.sink = x;
  }
};

}  // namespace tersekv_bench
