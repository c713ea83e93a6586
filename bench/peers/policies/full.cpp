// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
const bool added_full = add_policy("full", [](const SetShape& shape, const std::string& element) {
  return make_set<float, Half, BFloat16, Int8>(shape, element, Full{});
});
}  // namespace tersekv::peers
