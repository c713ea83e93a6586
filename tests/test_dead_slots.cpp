// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
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

/// Output, normalisers and attention over `length` weighted entries, where the rest of their page
/// has `rest` for weights.
std::vector<float> attention_beside(float rest, Index length) {
  const Index page = 64, dim = 8, group = 3;
  const KeepKV policy;
  const tersekv::Shape shape{.group_size = group, .head_dim = dim, .scale = 0.5f};
  BareHead<KeepKV> bare(policy, shape, page, page);
  Random random(9);
  for (Index i = 0; i < length; ++i) {
    bare.push(random.normals(dim).data(), random.normals(dim).data(), random.uniform(0.5f, 4.0f));
  }
  auto* weights = const_cast<float*>(bare.head().weight_page(0));
  std::fill(weights + length, weights + page, rest);
  const std::vector<float> query = random.normals(group * dim);
  const tersekv::Observation& row = bare.attend(query.data(), length);
  std::vector<float> all(bare.output().begin(), bare.output().end());
  all.insert(all.end(), bare.lse().begin(), bare.lse().end());
  if (row.attention != nullptr) all.insert(all.end(), row.attention, row.attention + length);
  for (Index g = 0; g < group && row.logits != nullptr; ++g) {
    all.insert(all.end(), row.logits + g * row.logit_stride,
               row.logits + g * row.logit_stride + length);
  }
  return all;
}

}  // namespace

TEST_CASE("attention does not depend on what weights dead slots have") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Index length : {1, 5, 16, 17, 40, 63}) {
    INFO("length " << length);
    const std::vector<float> expected = attention_beside(1.0f, length);
    for (const float rest : {3e38f, 1e-38f, 0.0f, -1.0f, infinity, -infinity,
                             std::numeric_limits<float>::quiet_NaN()}) {
      CHECK(attention_beside(rest, length) == expected);
    }
  }
}
