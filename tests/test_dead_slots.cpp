// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "bare_head.hpp"
#include "support/random.hpp"
#include "tersekv/policies/keepkv.hpp"

using support::BareHead;
using support::Random;
using tersekv::Index;
using tersekv::KeepKV;

namespace {

/// What a head's one page holds beside its live entries.
struct Rest {
  float weight = 1.0f;
  int byte = 0;  ///< of keys, values and their scales
};

/// `byte` into dead slots' keys, values and scales, laid out as PageLayout says.
template <class Codec, class Head>
void fill_dead(const Head& head, Index length, int byte) {
  constexpr Index pack = tersekv::Codec<Codec>::pack;
  const Index page = head.page_size(), dim = head.head_dim();
  const auto fill = [&](const auto& element) {
    std::memset(const_cast<void*>(static_cast<const void*>(&element)), byte, sizeof element);
  };
  for (Index i = length; i < page; ++i) {
    for (Index j = 0; j < dim; ++j) {
      fill(head.key_page(0)[(j / pack * page + i) * pack + j % pack]);
      fill(head.value_page(0)[(i / pack * dim + j) * pack + i % pack]);
    }
    if constexpr (tersekv::Codec<Codec>::scaled) {
      fill(head.key_scale_page(0)[i]);
      fill(head.value_scale_page(0)[i]);
    }
  }
}

/// The bits of output, normalisers and attention over `length` weighted entries beside `rest`.
template <class Codec>
std::vector<std::uint32_t> attention_beside(const Rest& rest, Index length, Index dim) {
  const Index page = 64, group = 3;
  const KeepKV policy;
  const tersekv::Shape shape{.group_size = group, .head_dim = dim, .scale = 0.5f};
  BareHead<KeepKV, Codec> bare(policy, shape, page, page);
  Random random(9);
  for (Index i = 0; i < length; ++i) {
    bare.push(random.normals(dim).data(), random.normals(dim).data(), random.uniform(0.5f, 4.0f));
  }
  fill_dead<Codec>(bare.head(), length, rest.byte);
  auto* weights = const_cast<float*>(bare.head().weight_page(0));
  std::fill(weights + length, weights + page, rest.weight);
  const std::vector<float> query = random.normals(group * dim);
  const tersekv::Observation& row = bare.attend(query.data(), length);
  std::vector<float> all(bare.output().begin(), bare.output().end());
  all.insert(all.end(), bare.lse().begin(), bare.lse().end());
  if (row.attention != nullptr) all.insert(all.end(), row.attention, row.attention + length);
  for (Index g = 0; g < group && row.logits != nullptr; ++g) {
    all.insert(all.end(), row.logits + g * row.logit_stride,
               row.logits + g * row.logit_stride + length);
  }
  std::vector<std::uint32_t> bits;  // which compare as such whatever the compiler thinks of NaN
  for (const float x : all) bits.push_back(std::bit_cast<std::uint32_t>(x));
  return bits;
}

}  // namespace

TEMPLATE_TEST_CASE("attention does not depend on what dead slots hold", "", float,
                   tersekv::BFloat16, tersekv::Half, tersekv::Int8) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Index dim : {8, 5, 64}) {
    for (const Index length : {1, 5, 16, 17, 40, 63}) {
      CAPTURE(dim, length);
      const auto expected = attention_beside<TestType>({}, length, dim);
      for (const float weight : {3e38f, 1e-38f, 0.0f, -1.0f, infinity, -infinity,
                                 std::numeric_limits<float>::quiet_NaN()}) {
        CHECK(attention_beside<TestType>({.weight = weight}, length, dim) == expected);
      }
      // No numbers, the largest there are, and others.
      for (const int byte : {0xff, 0x7f, 0x80, 0x55}) {
        CHECK(attention_beside<TestType>({.byte = byte}, length, dim) == expected);
      }
    }
  }
}
