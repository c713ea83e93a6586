// SPDX-License-Identifier: Apache-2.0

// An entry's mean is over the queries that saw it, whichever were shown: MeanAttention counts those
// that it missed.

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "bare_head.hpp"
#include "tersekv/policies/weightedkv.hpp"

using Catch::Approx;
using tersekv::Index;

namespace {

using Bare = support::BareHead<tersekv::WeightedKV>;

class Shown {
 public:
  explicit Shown(Index entries) : bare_(policy_, {1, 4, 0, 1.0f}, entries, entries) {}

  void append(Index count) {
    const std::vector<float> zeros(4);
    const Index first = bare_.head().length();
    for (Index i = 0; i < count; ++i) bare_.push(zeros.data(), zeros.data());
    policy_.append(team_, bare_.head(), first, count, nullptr);
  }
  /// A query to which the first `visible` entries are `share` each.
  void show(Index visible, float share) {
    const std::vector<float> row(static_cast<std::size_t>(visible), share);
    tersekv::Observation seen;
    seen.visible = visible;
    seen.attention = row.data();
    policy_.observe(team_, bare_.head(), seen);
  }
  float score(Index slot) { return policy_.scorer().score(bare_.head(), slot); }

 private:
  tersekv::WeightedKV policy_ = tersekv::make_weightedkv();
  Bare bare_;
  tersekv::SerialTeam team_;
};

}  // namespace

TEST_CASE("a mean is over the queries that saw the entry") {
  constexpr Index n = 70;  // more than a page, and a tail of every vector's width
  Shown head(n + 2);
  head.append(n);
  CHECK(head.score(0) == 0);
  for (Index visible = n - 5; visible <= n; ++visible)
    head.show(visible, 0.5f);  // the last six rows
  for (Index i = 0; i < n; ++i) CHECK(head.score(i) == Approx(0.5));

  head.append(1);  // and its query is never shown
  CHECK(head.score(n) == 0);
  head.append(1);
  head.show(n + 2, 0.25f);
  head.show(n, 1.0f);  // one of before, once more
  CHECK(head.score(n) == Approx(0.25));
  CHECK(head.score(n + 1) == Approx(0.25));
  CHECK(head.score(n - 1) == Approx((0.5 + 0.25 + 1) / 3));
  CHECK(head.score(0) == Approx((6 * 0.5 + 0.25 + 1) / 8));
}
