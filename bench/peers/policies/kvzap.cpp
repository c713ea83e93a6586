// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
/// It has a threshold where others have a budget: one that leaves about `budget` of `tokens`, given
/// scores uniform in [0, 1).
const bool added_kvzap = add_policy("kvzap", [](const SetShape& shape, const std::string& element) {
  KVzapOptions options{.threshold = 0.0f};
  if (shape.budget > 0 && shape.budget < shape.tokens) {
    options.window = std::min<Index>(options.window, shape.budget / 2);
    const auto share = static_cast<float>(shape.budget - options.window) /
                       static_cast<float>(shape.tokens - options.window);
    options.threshold = 1 - share;
  }
  return make_set<BFloat16>(shape, element, make_kvzap(options));
});
}  // namespace tersekv::peers
