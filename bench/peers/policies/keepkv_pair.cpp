// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
const bool added_keepkv_pair =
    add_policy("keepkv_pair", [](const SetShape& shape, const std::string& element) {
      return make_set<BFloat16>(shape, element, make_keepkv_pair());
    });
}  // namespace tersekv::peers
