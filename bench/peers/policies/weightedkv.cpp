// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
const bool added_weightedkv =
    add_policy("weightedkv", [](const SetShape& shape, const std::string& element) {
      return make_set<BFloat16>(shape, element, make_weightedkv());
    });
}  // namespace tersekv::peers
