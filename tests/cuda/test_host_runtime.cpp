// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cuda/device_tokens.hpp"
#include "tersekv/tersekv.hpp"

// What only a device on the host can show: what a step asks of the runtime, every byte held,
// and addresses beyond 2^31 elements.

using namespace tersekv;
using host_cuda::Runtime;
using on_device::Tokens;
using support::Random;

namespace {

template <class Policy, class Codec = float>
using DeviceCache = on_device::KVCache<Policy, Codec, Codec, tersekv::cuda::HeadDims<16>>;

CacheConfig config(Index sequences, Index budget) {
  return {.num_sequences = sequences,
          .num_q_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .budget = budget};
}

/// A context of a head to which another one comes right after its first atomic operation.
struct Interrupted {
  std::function<void()>& other;
  std::int32_t fetch_add(std::int32_t* p, std::int32_t x) const {
    const std::int32_t before = *p;
    *p += x;
    if (auto come = std::exchange(other, nullptr)) come();
    return before;
  }
  std::int32_t compare_exchange(std::int32_t* p, std::int32_t expected, std::int32_t x) const {
    const std::int32_t before = *p;
    if (before == expected) *p = x;
    return before;
  }
};

template <class T, class Policy>
void check_step(const Policy& policy) {
  Random random(1);
  using Tokens = on_device::TokensOf<T>;
  DeviceCache<Policy, T> cache(config(2, 20), policy, {.max_chunk = 40, .max_length = 80});
  for (Index s = 0; s < 2; ++s) cache.extend(Tokens(random, 30, 2, 2, 16).batch(s));
  const Tokens token(random, 2, 2, 2, 16);
  const int allocations = Runtime::allocations, copies = Runtime::copies_to_host,
            waits = Runtime::synchronizations, launches = Runtime::launches;
  cache.extend(token.batch({0, 2}));
  CHECK(Runtime::allocations == allocations);
  CHECK(Runtime::copies_to_host == copies);
  CHECK(Runtime::synchronizations == waits);
  CHECK(Runtime::launches == launches + 3);
}

}  // namespace

TEST_CASE("device: a step of a batch is three launches and asks for nothing else") {
  check_step<Half>(StreamingLLM{});
  check_step<Half>(ZSMerge{});
  check_step<Half>(make_kvzap({.window = 4}));
  check_step<Half>(KeepKV{});
  check_step<float>(ZSMerge{});
}

TEST_CASE("device: bytes are all that was allocated") {
  const auto check = [](auto make) {
    const Index before = Runtime::bytes;
    auto cache = make();
    Random random(2);
    cache.extend(Tokens(random, 30, 2, 2, 16).batch(0));
    cache.synchronize();
    CHECK(cache.bytes() == Runtime::bytes - before);
    CHECK(cache.memory().keys == 2 * 20 * 16 * 4);
    CHECK(cache.memory().workspace > 0);
  };
  check([] { return DeviceCache<ZSMerge>(config(2, 20), {}, {.max_chunk = 40}); });
  check([] { return DeviceCache<StreamingLLM>(config(1, 20), {}, {.max_chunk = 40}); });
}

TEST_CASE("device: views may reach beyond 2^31 elements") {
  // Address space without memory behind it, but for the pages that are touched.
  constexpr Index stride = (Index{1} << 31) + 64, tokens = 2;
  constexpr std::size_t bytes = (tokens * stride + 4096) * sizeof(float);
  void* space = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) SKIP("no address space of 32 GiB");
  auto* far = static_cast<float*>(space);
  Random random(3);
  DeviceCache<H2O> near_cache(config(2, 20), {}, {.max_chunk = 40}),
      far_cache(config(2, 20), {}, {.max_chunk = 40});
  const Tokens t(random, tokens, 2, 2, 16);
  auto b = t.batch({0, 2});
  near_cache.extend(b);
  const std::vector<float> want = t.out();
  const auto moved = [&](const TokenView<const float>& view, float* to) {
    TokenView<float> there{to, view.tokens, view.heads, view.head_dim, stride, view.head_dim, 1};
    for (Index i = 0; i < view.tokens; ++i) {
      for (Index h = 0; h < view.heads; ++h) {
        for (Index j = 0; j < view.head_dim; ++j) there(i, h, j) = view(i, h, j);
      }
    }
    return there;
  };
  b.q = moved(b.q, far);
  b.k = moved(b.k, far + 512);
  b.v = moved(b.v, far + 1024);
  b.out = {far + bytes / sizeof(float), tokens, 4, 16, stride, 16, 1};
  far_cache.extend(b);
  for (Index i = 0; i < tokens; ++i) {
    for (Index h = 0; h < 4; ++h) {
      for (Index j = 0; j < 16; ++j) {
        REQUIRE(b.out(i, h, j) == want[static_cast<std::size_t>((i * 4 + h) * 16 + j)]);
      }
    }
  }
  // The rows of a launch as well: 40 heads of 16 query heads, a million entries.
  tersekv::cuda::DeviceScratch scratch;
  scratch.stride = Index{1} << 20;
  scratch.group = 16;
  scratch.rows = 4;
  scratch.logits = scratch.floats = far;
  CHECK(scratch.logits_of(39, 3) - far == (Index{39 * 4 + 3} * 16) << 20);
  CHECK(scratch.of(3000).floats - far == Index{3000} << 20);
  munmap(space, 2 * bytes);
}

namespace {
/// Of rows r to r + 7 of every eighth row, and every chunk of them, those whose banks two rows
/// share.
template <class At>
int shared_banks(int rows, int chunks, At&& at) {
  int shared = 0;
  for (int r = 0; r + 8 <= rows; r += 8) {
    for (int c = 0; c < chunks; ++c) {
      unsigned taken = 0;
      for (int i = 0; i < 8; ++i) taken |= 1u << at(r + i, c) / 16 % 8;
      shared += taken == 0xff ? 0 : 1;
    }
  }
  return shared;
}
template <int Dim, class Codec = Half>
void check_banks() {
  CAPTURE(Dim);
  using Ring = tersekv::cuda::TileRing<Codec, Codec, Dim, 128, true>;
  CHECK(shared_banks(Dim, Ring::kKeyChunks, Ring::key_at) == 0);
  CHECK(shared_banks(Ring::kEntries, Ring::kValueChunks, Ring::value_at) == 0);
  std::vector<bool> taken(static_cast<std::size_t>(Ring::kEntries * Ring::kValueChunks), false);
  for (int r = 0; r < Ring::kEntries; ++r) {
    for (int c = 0; c < Ring::kValueChunks; ++c) {
      taken.at(static_cast<std::size_t>(Ring::value_at(r, c) / 16)) = true;
    }
  }
  CHECK(std::count(taken.begin(), taken.end(), false) == 0);  // each has a place of its own
}
}  // namespace

TEST_CASE("device: eight rows' chunks of a column lie in different banks") {
  check_banks<64>();
  check_banks<80>();
  check_banks<96>();
  check_banks<128>();
  check_banks<192>();
  check_banks<256>();
}

TEST_CASE("plan: splits fill the device, and no more") {
  const auto splits = [](const std::vector<Index>& tiles, Index blocks, Index most = 256) {
    return tersekv::cuda::choose_splits(tiles, blocks, 264, most).count;
  };
  const auto heads = [](std::size_t n, Index tiles) { return std::vector<Index>(n, tiles); };
  CHECK(splits(heads(8, 1), 1) == 1);       // one tile
  CHECK(splits(heads(264, 2000), 1) == 1);  // full without
  CHECK(splits(heads(8, 2000), 1) == 33);   // 8 * 33 = 264: one wave
  CHECK(splits(heads(8, 2000), 1, 5) == 5);
  CHECK(splits(heads(8, 4), 1) <= 4);
  // Few long heads among short ones: split as if the short ones were hardly there.
  std::vector<Index> ragged(64, 2);
  for (std::size_t h = 0; h < 12; ++h) ragged[h] = 2000;
  CHECK(splits(ragged, 1) >= 15);
  CHECK(splits(heads(64, 2000), 1) < 9);
  // Never dearer than one split.
  for (Index tiles : {1, 3, 17, 100, 999}) {
    for (std::size_t n : {1, 7, 64, 300}) {
      const Index s = splits(heads(n, tiles), 1);
      const auto cost = [&](Index cut) {
        const Index each = (tiles + cut - 1) / cut, blocks = static_cast<Index>(n);
        return static_cast<double>((blocks * ((tiles + each - 1) / each) + 263) / 264) *
               (static_cast<double>(each) + tersekv::cuda::kSplitCost);
      };
      CHECK(cost(s) <= cost(1));
    }
  }
  using tersekv::cuda::choose_team;
  CHECK(choose_team(8, 100, 4096, 132, 8) == 1);
  CHECK(choose_team(8, 131072, 4096, 132, 8) == 8);
  CHECK(choose_team(8, 131072, 32768, 132, 8) == 8);
  CHECK(choose_team(8, 65535, 32768, 132, 8) == 2);
  CHECK(choose_team(64, 131072, 4096, 132, 8) == 2);
  CHECK(choose_team(512, 131072, 4096, 132, 8) == 1);
}

TEST_CASE("device: a head for which there are too few pages takes none from another") {
  std::byte pages[3];
  std::byte* list[] = {pages, pages + 1, pages + 2};
  const auto taken = [&](std::int32_t there, std::int32_t wanted, std::int32_t by_other) {
    std::int32_t idle = there;
    const tersekv::cuda::FreePages free{list, &idle};
    std::byte* mine[5] = {};
    std::byte* theirs[5] = {};
    bool got_theirs = false;
    std::function<void()> none,
        other = [&] { got_theirs = free.take(Interrupted{none}, by_other, theirs); };
    const bool got_mine = free.take(Interrupted{other}, wanted, mine);
    CAPTURE(there, wanted, by_other);
    CHECK(idle == there - (got_mine ? wanted : 0) - (got_theirs ? by_other : 0));
    // Each has all that it wanted, and none of the other's, or nothing.
    std::vector<int> owners(3);
    const auto count_pages = [&](const auto& of, bool got, std::int32_t all) {
      for (std::int32_t i = 0; i < 5; ++i) {
        REQUIRE((of[i] != nullptr) == (got && i < all));
        if (of[i] != nullptr) ++owners[static_cast<std::size_t>(of[i] - pages)];
      }
    };
    count_pages(mine, got_mine, wanted);
    count_pages(theirs, got_theirs, by_other);
    CHECK(*std::max_element(owners.begin(), owners.end()) <= 1);
    return std::pair{got_mine, got_theirs};
  };
  CHECK(taken(3, 5, 2) == std::pair{false, true});
  CHECK(taken(3, 2, 2) == std::pair{false, true});
  CHECK(taken(3, 1, 2) == std::pair{true, true});
  CHECK(taken(2, 2, 1) == std::pair{false, true});
  CHECK(taken(1, 1, 1) == std::pair{true, false});
  CHECK(taken(0, 1, 1) == std::pair{false, false});
  CHECK(taken(1, 1, 2) == std::pair{true, false});
}
