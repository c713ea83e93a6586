// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
const bool added_zsmerge =
    add_policy("zsmerge", [](const SetShape& shape, const std::string& element) {
      return make_set<BFloat16>(shape, element, make_zsmerge());
    });
}  // namespace tersekv::peers
