// SPDX-License-Identifier: Apache-2.0
// Attention's products by tile registers: emulated ones, and the processor's where there are some.
#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "emulated_tiles.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "tersekv/attention_tiles.hpp"

using namespace tersekv;
using support::EmulatedTiles;
using support::ErrorStatistics;
using support::Random;

namespace {

/// Elements, and by what rule tiles work on a request over them.
template <class T, Tiling how>
struct Way {
  using Element = T;
  static constexpr Tiling tiling = how;
  /// Dimensions come in multiples of it.
  static constexpr Index multiple = how == Tiling::token ? 32 : 16;
};

/// Rows against one block of a page, and no more memory than a cache has for that.
template <class T, class Tiles, Tiling tiling = Tiling::chunk>
struct Block {
  using Tiled = std::conditional_t<tiling == Tiling::token, detail::TiledPages<T, T, Tiles>,
                                   detail::TiledAttention<T, T, Tiles>>;
  Index rows, dim, page;
  std::vector<float> room, queries, units;
  AttentionBuffers buffers;
  AttentionRequest request;

  Block(Index num_rows, Index head_dim, Index page_size)
      : rows(num_rows),
        dim(head_dim),
        page(page_size),
        room(static_cast<std::size_t>(Tiled::room(rows, dim, page))),
        queries(static_cast<std::size_t>(rows * padded_dim(dim))),
        units(static_cast<std::size_t>(4 * rows)) {
    buffers.tiled = room.data();
    buffers.byte_queries = queries.data();
    buffers.byte_units = units.data();
    request.tiling = tiling;
  }
  Tiled tiled() const { return Tiled(request, rows, dim, page, buffers); }
  /// Of the tiles that are multiplied.
  Index tile_rows() const {
    Index all = simd::kTileRows;
    if constexpr (Codec<T>::scaled) all = tiled().tile_rows();
    EmulatedTiles::left_rows = static_cast<int>(all);
    return all;
  }

  /// [rows, page], numbers of rows before `first` are arbitrary.
  std::vector<float> logits(const float* query, const T* keys, const float* scales, float scale,
                            Index entries, Index first = 0) const {
    std::vector<float> out(static_cast<std::size_t>(detail::whole_tile_rows(rows) * page), 7.0f);
    Tiled t = tiled();
    REQUIRE(t.on());
    const simd::TileSetup setup(std::is_same_v<Tiles, simd::Tiles>, simd::kTileBytes, tile_rows());
    t.make_queries(query, scale);
    t.logits(keys, detail::Ahead<T>::none(keys), false, scales, page, entries, first, out.data(),
             page);
    return out;
  }
  /// [rows, dim], added to factors times `sums`.
  std::vector<float> values(std::vector<float> sums, const std::vector<float>& factors,
                            const float* exponentials, const T* stored, const float* scales,
                            Index entries, Index first = 0) const {
    Tiled t = tiled();
    REQUIRE(t.on());
    const simd::TileSetup setup(std::is_same_v<Tiles, simd::Tiles>, simd::kTileBytes, tile_rows());
    t.values(stored, detail::Ahead<T>::none(stored), false, scales, entries, exponentials, page,
             first, factors.data(), sums.data(), dim);
    return sums;
  }
};

template <class T>
std::vector<T> stored(Random& random, Index n) {
  std::vector<T> elements(static_cast<std::size_t>(n));
  for (T& x : elements) {
    if constexpr (Codec<T>::scaled) {
      x.bits = static_cast<std::int8_t>(random.integer(-127, 127));
    } else {
      x = from_float<T>(static_cast<float>(random.normal()));
    }
  }
  return elements;
}
/// Exponentials [rows, page]: from 0 to 1, of every size.
std::vector<float> shares(Random& random, Index n) {
  std::vector<float> result(static_cast<std::size_t>(n));
  for (float& x : result) x = static_cast<float>(std::exp(random.uniform(-20, 0)));
  return result;
}
bool same_bits(const float* a, const float* b, Index n) {
  for (Index i = 0; i < n; ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  }
  return true;
}
/// Calls f<Tiles>() for emulated tiles, and for those of the processor where it has some.
template <class F>
void for_each_tiles(F&& f) {
  f.template operator()<EmulatedTiles>();
  if constexpr (simd::Tiles::exist) {
    if (simd::Tiles::granted()) f.template operator()<simd::Tiles>();
  }
}

}  // namespace

TEST_CASE("products of bytes by tiles are those of vectors, to the bit") {
  Random random(1);
  INFO(random);
  for (int i = 0; i < 40; ++i) {
    const Index dim = 64 * random.integer(1, 3), page = 64 << random.integer(0, 2);
    const Index rows = random.integer(1, 40), entries = random.integer(1, page);
    const Index first = random.integer(0, rows - 1), padded = padded_dim(dim);
    CAPTURE(dim, page, rows, entries, first);
    const auto q = random.normals(rows * dim);
    const auto keys = stored<Int8>(random, page * dim), values = stored<Int8>(random, page * dim);
    const auto scales = shares(random, page), e = shares(random, rows * page);
    const auto before = random.normals(rows * dim);
    auto factors = shares(random, rows);

    std::vector<float> digits(static_cast<std::size_t>(rows * padded)),
        units(static_cast<std::size_t>(4 * rows)), logits(static_cast<std::size_t>(rows * page)),
        sums = before, taken = e;
    for (Index r = 0; r < rows; ++r) {
      detail::make_byte_row(q.data() + r * dim, dim, 0.3f, digits.data() + r * padded,
                            units.data() + 4 * r);
    }
    const Index whole = padded_dim(entries);
    detail::byte_key_tile(keys.data(), detail::Ahead<Int8>::none(keys.data()), false, page, dim,
                          whole / simd::kLanes, {digits.data(), units.data(), padded}, rows,
                          scales.data(), false, logits.data(), page);
    for (Index r = 0; r < rows; ++r) {
      float* row = taken.data() + r * page;
      const float most = detail::scaled_shares(row, scales.data(), entries, whole, row);
      units[static_cast<std::size_t>(r)] = detail::to_unsigned_digits(row, whole, most, row);
    }
    detail::byte_value_tile(values.data(), detail::Ahead<Int8>::none(values.data()), false, dim,
                            entries, taken.data(), rows, page, units.data(), factors.data(),
                            sums.data(), dim);

    for_each_tiles([&]<class Tiles>() {
      const Block<Int8, Tiles> block(rows, dim, page);
      const auto got = block.logits(q.data(), keys.data(), scales.data(), 0.3f, entries, first);
      const auto added =
          block.values(before, factors, e.data(), values.data(), scales.data(), entries, first);
      REQUIRE(same_bits(added.data(), before.data(), first * dim));
      for (Index r = first; r < rows; ++r) {
        REQUIRE(same_bits(got.data() + r * page, logits.data() + r * page, entries));
        REQUIRE(same_bits(added.data() + r * dim, sums.data() + r * dim, dim));
      }
    });
  }
}

TEMPLATE_TEST_CASE("products of pieces hold all of a query and 2^-16 of a share", "",
                   (Way<Half, Tiling::chunk>), (Way<BFloat16, Tiling::chunk>),
                   (Way<BFloat16, Tiling::token>)) {
  using T = typename TestType::Element;
  for_each_tiles([&]<class Tiles>() {
    Random random(2);
    INFO(random);
    ErrorStatistics of_logits, of_values;
    for (int i = 0; i < 25; ++i) {
      const Index dim = TestType::multiple * random.integer(1, 9);
      const Index page = 32 << random.integer(0, 3);
      const Index rows = random.integer(1, 40), entries = random.integer(1, page);
      const bool token = TestType::tiling == Tiling::token;  // whose rows see the same
      const Index first = token ? 0 : random.integer(0, rows - 1);
      CAPTURE(dim, page, rows, entries, first);
      const auto q = random.normals(rows * dim);
      auto keys = stored<T>(random, page * dim), values = keys;
      // What is not live must not be seen, not even what is no number.
      for (Index at = entries * dim; at < page * dim; ++at) {
        values[static_cast<std::size_t>(at)].bits = 0xffff;
      }
      for (Index at = 0; at < page * dim; ++at) {
        if (at % page >= entries) keys[static_cast<std::size_t>(at)].bits = 0xffff;
      }
      const auto e = shares(random, rows * page), before = random.normals(rows * dim);
      const auto factors = shares(random, rows);
      const Block<T, Tiles, TestType::tiling> block(rows, dim, page);
      const auto logits = block.logits(q.data(), keys.data(), nullptr, 0.25f, entries, first);
      const auto sums =
          block.values(before, factors, e.data(), values.data(), nullptr, entries, first);
      REQUIRE(same_bits(sums.data(), before.data(), first * dim));
      const auto at = [](const auto& all, Index index) {
        return static_cast<double>(to_float(all[static_cast<std::size_t>(index)]));
      };
      for (Index r = first; r < rows; ++r) {
        for (Index k = 0; k < entries; ++k) {
          double exact = 0, size = 0;
          for (Index j = 0; j < dim; ++j) {
            const double term = 0.25 * at(q, r * dim + j) * at(keys, j * page + k);
            exact += term;
            size += std::fabs(term);
          }
          of_logits.add(at(logits, r * page + k), exact, size);
        }
        for (Index j = 0; j < dim; ++j) {
          const double old = at(factors, r) * at(before, r * dim + j);
          double exact = old, size = std::fabs(old);
          for (Index k = 0; k < entries; ++k) {
            const double term = at(e, r * page + k) * at(values, k * dim + j);
            exact += term;
            size += std::fabs(term);
          }
          of_values.add(at(sums, r * dim + j), exact, size);
        }
      }
    }
    // As floats err; and as shares do that are rounded to 2^-16 of themselves.
    CHECK(support::within(of_logits, {4e-9, 1.5e-8}, {5e-8, 2.4e-7}));
    CHECK(support::within(of_values, {1e-6, 3e-6}, {5e-6, 1.6e-5}));
  });
}

TEMPLATE_TEST_CASE("a row by tiles is the same bits whatever the others", "",
                   (Way<Half, Tiling::chunk>), (Way<BFloat16, Tiling::chunk>),
                   (Way<BFloat16, Tiling::token>)) {
  using T = typename TestType::Element;
  Random random(3);
  INFO(random);
  const Index dim = 5 * TestType::multiple, page = 64, rows = 37, entries = 51;
  auto q = random.normals(rows * dim);
  // Some rows are numbers of BFloat16, and take fewer pieces among themselves.
  for (Index i = 0; i < 20 * dim; ++i) {
    float& x = q[static_cast<std::size_t>(i)];
    x = to_float(from_float<BFloat16>(x));
  }
  const auto keys = stored<T>(random, page * dim), values = keys;
  const auto e = shares(random, rows * page), factors = shares(random, rows);
  const std::vector<float> before(static_cast<std::size_t>(rows * dim), 1.0f);
  for_each_tiles([&]<class Tiles>() {
    const Block<T, Tiles, TestType::tiling> all(rows, dim, page);
    const auto logits = all.logits(q.data(), keys.data(), nullptr, 0.1f, entries);
    const auto sums = all.values(before, factors, e.data(), values.data(), nullptr, entries);
    for (const Index n : {1, 5, 16, 20}) {
      for (Index r = 0; r + n <= rows; r += n) {
        CAPTURE(n, r);
        const Block<T, Tiles, TestType::tiling> few(n, dim, page);
        const auto some = few.logits(q.data() + r * dim, keys.data(), nullptr, 0.1f, entries);
        const std::vector<float> given(factors.begin() + r, factors.end());
        const auto added =
            few.values(before, given, e.data() + r * page, values.data(), nullptr, entries);
        for (Index row = 0; row < n; ++row) {
          REQUIRE(same_bits(some.data() + row * page, logits.data() + (r + row) * page, entries));
        }
        REQUIRE(same_bits(added.data(), sums.data() + r * dim, n * dim));
      }
    }
  });
}
