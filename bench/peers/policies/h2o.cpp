// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
const bool added_h2o = add_policy("h2o", [](const SetShape& shape, const std::string& element) {
  return make_set<BFloat16>(shape, element, make_h2o());
});
}  // namespace tersekv::peers
