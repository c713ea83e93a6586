// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "support/random.hpp"
#include "tersekv/cuda/body/team.hpp"

// A device's team over keys, and over entries that are read ahead of what is written.

using namespace tersekv;
using namespace tersekv::cuda;
using on_device::Array;
using support::Random;

namespace {

constexpr Index kPage = 16;
constexpr int kRows = 3;

/// Keys in pages, [dim, entry of the page].
struct Keys {
  using Key = Half;
  const Half* keys;
  Index dim;
  TERSEKV_HD Index page_size() const { return kPage; }
  TERSEKV_HD Index head_dim() const { return dim; }
  TERSEKV_HD Index page_index(Index slot) const { return slot / kPage; }
  TERSEKV_HD Index in_page(Index slot) const { return slot % kPage; }
  TERSEKV_HD PageSlot page_slot(Index page) const { return {nullptr, nullptr, page * kPage, 0}; }
  TERSEKV_HD const Half* key_page(Index page) const { return keys + page * kPage * dim; }
};

struct KeysBody {
  struct Args {
    Keys head;
    Index n, first, count;
    const float* vectors;       // [kRows, dim]
    float *products, *squares;  // [kRows, n], [n]
    std::int32_t* list;         // [n], read and written
    std::byte* exchange;
  };
  static constexpr int kThreads = 64;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context& context, const Args& args) {
    const BlockTeam<Context> team(context, args.exchange);
    team.template dot<kRows>(args.head, args.vectors, args.n, args.products, kRows, args.n);
    team.for_each_square(args.head, args.first, args.count,
                         [&](Index slot, float square) { args.squares[slot] += square; });
    team.for_each_vector(
        args.head, args.n, [&](auto slot) { return args.list[slot] + 1; },
        [&](auto slot, std::int32_t x) { args.list[slot] = 2 * x; });
  }
};

}  // namespace

TEST_CASE("team: products with keys, their squares to the bit, and entries read ahead", "[small]") {
  on_device::require_device();
  const int team = GENERATE(1, 2);
  Random random(static_cast<std::uint64_t>(team));
  for (const Index dim : {8, 32, 80, 192}) {
    for (const Index n : {1, 2, 33, 150}) {
      CAPTURE(team, dim, n, random);
      const Index pages = (n + kPage - 1) / kPage;
      std::vector<Half> keys;
      for (float x : random.normals(pages * kPage * dim)) keys.push_back(from_float<Half>(x));
      const auto key = [&](Index slot, Index j) {
        return to_float(
            keys[static_cast<std::size_t>((slot / kPage * dim + j) * kPage + slot % kPage)]);
      };
      const Index first = n / 3, count = n - first;
      std::vector<Index> chosen;
      std::vector<float> vectors;
      for (Index r = 0; r < kRows; ++r) {
        chosen.push_back(random.integer(0, n - 1));
        for (Index j = 0; j < dim; ++j) vectors.push_back(key(chosen.back(), j));
      }
      const Array<Half> there(keys);
      const Array<float> there_vectors(vectors), products(kRows * n, -1.0f), squares(n, 0.0f);
      const Array<std::int32_t> list(n, 3);
      const Array<std::byte> exchange(DeviceScratch::kMostTeamBlocks *
                                      DeviceScratch::kExchangeBytes);
      on_device::run<KeysBody>({team}, team,
                               {{there.data(), dim},
                                n,
                                first,
                                count,
                                there_vectors.data(),
                                products.data(),
                                squares.data(),
                                list.data(),
                                exchange.data()});
      const auto got = products.host(), squared = squares.host();
      for (Index i = 0; i < n; ++i) {
        double square = 0;
        for (Index j = 0; j < dim; ++j) {
          square += static_cast<double>(key(i, j)) * static_cast<double>(key(i, j));
        }
        const float squared_here = squared[static_cast<std::size_t>(i)];
        CAPTURE(i);
        CHECK(std::abs(static_cast<double>(squared_here) - (i < first ? 0 : square)) <=
              1e-5 * square);
        for (Index r = 0; r < kRows; ++r) {
          const Index other = chosen[static_cast<std::size_t>(r)];
          const float product_here = got[static_cast<std::size_t>(r * n + i)];
          double product = 0;
          for (Index j = 0; j < dim; ++j) {
            product += static_cast<double>(key(i, j)) * static_cast<double>(key(other, j));
          }
          CAPTURE(r);
          CHECK(std::abs(static_cast<double>(product_here) - product) <= 1e-5 * square + 1e-5);
          if (i == other && i >= first) CHECK(squared_here == product_here);
        }
      }
      for (const std::int32_t x : list.host()) CHECK(x == 8);
    }
  }
}
