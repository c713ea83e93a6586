// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {
const bool added_streaming_llm =
    add_policy("streaming_llm", [](const SetShape& shape, const std::string& element) {
      return make_set<BFloat16>(shape, element, make_streaming_llm());
    });
}  // namespace tersekv::peers
