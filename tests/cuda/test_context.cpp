// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "support/random.hpp"

// Each function of an execution context does what context.hpp says: on the host here, by the
// hardware where nvcc compiles this.

using namespace tersekv;
using namespace tersekv::cuda;
using on_device::Array;

namespace {

constexpr int kThreadsOfTest = 64;

struct WarpBody {
  struct Args {
    int* out;  // [4, threads]
  };
  static constexpr int kThreads = kThreadsOfTest;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context& c, const Args& args) {
    const int x = 100 * c.warp() + c.lane();
    args.out[c.thread()] = c.shuffle_xor(x, 5);
    args.out[kThreads + c.thread()] = c.shuffle(x, 3);
    args.out[2 * kThreads + c.thread()] = c.block().y * 1000 + c.block().z;
    args.out[3 * kThreads + c.thread()] =
        static_cast<int>(c.ballot((c.lane() + c.warp()) % 3 == 0));
  }
};

struct Pairs {
  int low, high;
};
struct Widest {
  TERSEKV_HD Pairs operator()(const Pairs& a, const Pairs& b) const {
    return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
  }
};

struct BlockBody {
  struct Args {
    const int* in;
    int* out;  // [4, threads]
    std::int32_t* count;
  };
  static constexpr int kThreads = kThreadsOfTest;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context& c, const Args& args) {
    const int x = args.in[c.thread()];
    const Pairs widest = c.reduce(Pairs{x, x}, Widest());
    args.out[c.thread()] = widest.low;
    args.out[kThreads + c.thread()] = widest.high;
    int total = 0;
    args.out[2 * kThreads + c.thread()] = c.exclusive_sum(x, total);
    args.out[3 * kThreads + c.thread()] = total;
    c.fetch_add(args.count, x);
  }
};

/// A ring of two stages of 16 bytes a thread; other threads' bytes are read.
struct CopyBody {
  struct Args {
    const int* in;  // [stages, threads, 4]
    int* out;
    int stages;
  };
  static constexpr int kThreads = kThreadsOfTest;
  static constexpr std::size_t kSharedBytes = 2 * 16 * kThreadsOfTest;
  template <class Context>
  static TERSEKV_HD void run(const Context& c, const Args& args) {
    auto* ring = reinterpret_cast<int*>(c.shared());
    const auto load = [&](int stage) {
      if (stage < args.stages) {
        c.copy16(ring + 4 * (stage % 2 * kThreads + c.thread()),
                 args.in + 4 * (stage * kThreads + c.thread()));
      }
      c.commit();
    };
    load(0);
    for (int s = 0; s < args.stages; ++s) {
      c.template wait<0>();
      c.barrier();
      load(s + 1);
      const int other = (c.thread() + 1) % kThreads;
      for (int i = 0; i < 4; ++i) {
        args.out[4 * (s * kThreads + c.thread()) + i] = ring[4 * (s % 2 * kThreads + other) + i];
      }
    }
  }
};

/// D = A B of 16x16 and 16x8 numbers, both sides through the registers' layout; B [16, 8] row by
/// row through `load_transposed`.
template <class E>
struct MmaBody {
  struct Args {
    const E *a, *b;  // [16, 16], [16, 16]: two products side by side
    float* d;        // [16, 16]
  };
  static constexpr int kThreads = kWarp;
  static constexpr std::size_t kSharedBytes = 2 * 256;
  template <class Context>
  static TERSEKV_HD void run(const Context& c, const Args& args) {
    auto* b = reinterpret_cast<E*>(c.shared());
    for (int i = c.thread(); i < 256; i += kThreads) b[i] = args.b[i];
    c.barrier();
    const int w = c.lane() / 4, q = c.lane() % 4;
    std::uint32_t left[4], right[4];
    for (int i = 0; i < 4; ++i) {
      const E* pair = args.a + (w + i % 2 * 8) * 16 + 2 * q + i / 2 * 8;
      left[i] = c.template pack<E>(to_float(pair[0]), to_float(pair[1]));
    }
    c.load_transposed(right, b + c.lane() % 16 * 16 + c.lane() / 16 * 8);
    const std::uint32_t low[2] = {right[0], right[1]}, high[2] = {right[2], right[3]};
    float d[2][4] = {};
    c.template mma<E>(d[0], left, low);
    c.template mma<E>(d[1], left, high);
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) args.d[(w + i / 2 * 8) * 16 + n * 8 + 2 * q + i % 2] = d[n][i];
    }
  }
};

struct TeamBody {
  struct Args {
    int* shared;  // [blocks]
    int* out;     // [blocks, threads]
  };
  static constexpr int kThreads = kThreadsOfTest;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context& c, const Args& args) {
    for (int round = 1; round <= 3; ++round) {
      if (c.thread() == 0) args.shared[c.block().x] = round * (c.team_rank() + 1);
      c.team_barrier();
      int sum = 0;
      const int first = c.block().x - c.team_rank();
      for (int r = 0; r < c.team_blocks(); ++r) sum += args.shared[first + r];
      args.out[c.block().x * kThreads + c.thread()] += sum;
      c.team_barrier();
    }
  }
};

template <class E>
std::vector<E> narrow(const std::vector<float>& from) {
  std::vector<E> to;
  for (float x : from) to.push_back(from_float<E>(x));
  return to;
}

template <class E>
void check_mma(double tolerance) {
  support::Random random(3);
  const auto a = narrow<E>(random.normals(256)), b = narrow<E>(random.normals(256));
  const Array<E> on_a(a), on_b(b);
  const Array<float> d(256, -1.0f);
  on_device::run<MmaBody<E>>({}, 1, {on_a.data(), on_b.data(), d.data()});
  const auto got = d.host();
  for (std::size_t m = 0; m < 16; ++m) {
    for (std::size_t n = 0; n < 16; ++n) {
      double want = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        want += static_cast<double>(to_float(a[m * 16 + k])) *
                static_cast<double>(to_float(b[k * 16 + n]));
      }
      CAPTURE(m, n);
      CHECK(std::abs(static_cast<double>(got[m * 16 + n]) - want) <= tolerance);
    }
  }
}

}  // namespace

TEST_CASE("context: shuffles read other lanes of the warp", "[small]") {
  on_device::require_device();
  const Array<int> out(4 * kThreadsOfTest, -1);
  on_device::run<WarpBody>({1, 2, 3}, 1, {out.data()});
  const auto got = out.host();
  for (int t = 0; t < kThreadsOfTest; ++t) {
    const auto at = [&](int row) {
      return got[static_cast<std::size_t>(row * kThreadsOfTest + t)];
    };
    CHECK(at(0) == 100 * (t / 32) + (t % 32 ^ 5));
    CHECK(at(1) == 100 * (t / 32) + 3);
    CHECK((at(2) / 1000 < 2 && at(2) % 1000 < 3));
    const auto lanes = static_cast<std::uint32_t>(at(3));
    CHECK((lanes >> (t % 32) & 1) == ((t % 32 + t / 32) % 3 == 0 ? 1u : 0u));
  }
}

TEST_CASE("context: reductions and prefix sums cover the block", "[small]") {
  on_device::require_device();
  std::vector<int> in;
  for (int t = 0; t < kThreadsOfTest; ++t) in.push_back((t * 37 + 11) % 50);
  const Array<int> there(in), out(4 * kThreadsOfTest, -1);
  const Array<std::int32_t> count(1, 5);
  on_device::run<BlockBody>({3}, 1, {there.data(), out.data(), count.data()});
  const auto got = out.host();
  int sum = 0;
  for (int x : in) sum += x;
  int before = 0;
  for (int t = 0; t < kThreadsOfTest; ++t) {
    const auto at = [&](int row) {
      return got[static_cast<std::size_t>(row * kThreadsOfTest + t)];
    };
    CHECK(at(0) == *std::min_element(in.begin(), in.end()));
    CHECK(at(1) == *std::max_element(in.begin(), in.end()));
    CHECK(at(2) == before);
    CHECK(at(3) == sum);
    before += in[static_cast<std::size_t>(t)];
  }
  CHECK(count.host()[0] == 5 + 3 * sum);
}

TEST_CASE("context: copies are there after the wait and a barrier", "[small]") {
  on_device::require_device();
  const int stages = 5;
  std::vector<int> in;
  for (int i = 0; i < 4 * stages * kThreadsOfTest; ++i) in.push_back(i * 7 + 1);
  const Array<int> there(in), out(std::ssize(in), -1);
  on_device::run<CopyBody>({}, 1, {there.data(), out.data(), stages});
  const auto got = out.host();
  for (int s = 0; s < stages; ++s) {
    for (int t = 0; t < kThreadsOfTest; ++t) {
      for (int i = 0; i < 4; ++i) {
        const int from = 4 * (s * kThreadsOfTest + (t + 1) % kThreadsOfTest) + i;
        CHECK(got[static_cast<std::size_t>(4 * (s * kThreadsOfTest + t) + i)] ==
              in[static_cast<std::size_t>(from)]);
      }
    }
  }
}

TEST_CASE("context: mma multiplies, load_transposed transposes", "[small]") {
  on_device::require_device();
  check_mma<Half>(1e-4);
  check_mma<BFloat16>(1e-4);
}

TEST_CASE("context: blocks of a team meet", "[small]") {
  on_device::require_device();
  const int team = GENERATE(1, 2, 4);
  const Array<int> shared(8, 0), out(8 * kThreadsOfTest, 0);
  on_device::run<TeamBody>({8}, team, {shared.data(), out.data()});
  for (int x : out.host()) CHECK(x == 6 * team * (team + 1) / 2);
}
