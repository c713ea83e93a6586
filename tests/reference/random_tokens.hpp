// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "../support/random.hpp"
#include "head.hpp"

/// Normal queries, keys and values for one KV head, exact in float32.
inline std::vector<reference::Token> random_tokens(support::Random& random,
                                                   reference::Integer count,
                                                   reference::Integer group, reference::Integer d,
                                                   double query_deviation = 1) {
  const auto q = random.normals(count * group * d, query_deviation);
  const auto k = random.normals(count * d), v = random.normals(count * d);
  return reference::make_tokens(q.data(), k.data(), v.data(), count, 1, group, d, 0);
}
