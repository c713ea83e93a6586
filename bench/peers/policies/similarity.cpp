// SPDX-License-Identifier: Apache-2.0
#include "../cache_set_of.hpp"

namespace tersekv::peers {

/// `Weighted`, and at each step one pass over the keys for the newest one's products with all: what
/// KeepKV looks for the most similar key by, after the head's attention. (It goes through its
/// columns in between, which are a few hundredths of the bytes.)
struct Similarity : Weighted {
  template <class Team, class Head>
  void compress(Team& team, const Head& head) const {
    team.dot(head, key_of(team, head, head.length() - 1), head.length(), head.scratch().floats);
  }
};

const bool added_similarity =
    add_policy("similarity", [](const SetShape& shape, const std::string& element) {
      return make_set<float, Half, BFloat16, Int8>(shape, element, Similarity{});
    });
}  // namespace tersekv::peers
