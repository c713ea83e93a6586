// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <set>

#include "conformance.hpp"
#include "counting_resource.hpp"
#include "refusal.hpp"

// The judges of the conformance suite, on inputs that must fail.

namespace {

using namespace conformance;

TEST_CASE("helpers: every policy header has joined the suite") {
  std::set<std::string> joined;
  for (const PolicyCase& policy : policies()) {
    std::string plain;
    for (const char c : policy.name.substr(0, policy.name.find_first_of(" ,"))) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    joined.insert(plain);
  }
  int headers = 0;
  const auto folder = std::filesystem::path(TERSEKV_SOURCE_DIR) / "include/tersekv/policies";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::string name = file.path().stem().string();
    name.erase(std::remove(name.begin(), name.end(), '_'), name.end());
    CAPTURE(name);
    CHECK(joined.contains(name));
    ++headers;
  }
  CHECK(headers >= 10);
}

TEST_CASE("helpers: same_bits tells zero from minus zero and compares NaN") {
  CHECK(same_bits(support::kNaN, support::kNaN, ""));
  CHECK_FALSE(same_bits(0.0f, -0.0f, ""));
  CHECK_FALSE(same_bits(1.0f, std::bit_cast<float>(0x3f800001u), ""));
  CHECK_FALSE(same_bits("", std::vector<float>{1}, std::vector<float>{1, 2}));
  CHECK_FALSE(same_bits("", std::vector<float>{1, 2}, std::vector<float>{1, 3}));
}

TEST_CASE("helpers: same_state notices whatever changes in a cache") {
  const PolicyCase& policy = policies().front();
  support::Random random(1);
  const auto cache = policy.make(small_config(policy), {});
  Tokens tokens(random, cache->config(), 30);
  extend(*cache, tokens.chunk(0, 20));
  const State before(*cache, 0);
  CHECK(same_state(before, before));

  const auto changed = [&](auto&& change) {
    State other = before;
    change(other);
    return !same_state(other, before) && !same_state(before, other);
  };
  const auto entry = [](State& s) -> Entry& { return s.heads[1][3]; };
  CHECK(changed([&](State& s) { entry(s).position += 100; }));
  CHECK(changed([&](State& s) { entry(s).weight += 1; }));
  CHECK(changed([&](State& s) { entry(s).score += 1; }));
  CHECK(changed([&](State& s) { entry(s).key.back() += 1; }));
  CHECK(changed([&](State& s) { entry(s).value.front() += 1; }));
  CHECK(changed([&](State& s) { s.heads[1].pop_back(); }));
  for (std::size_t i = 0; i < before.numbers.size(); ++i) {
    CHECK(changed([&](State& s) { ++s.numbers[i]; }));
  }

  extend(*cache, tokens.chunk(20, 1));
  CHECK_FALSE(same_state(State(*cache, 0), before));
  cache->clear();
  CHECK_FALSE(same_state(State(*cache, 0), before));
}

TEST_CASE("helpers: same_outputs and same_bytes notice a difference") {
  support::Random random(2);
  Tokens one(random, small_config(policies().front()), 3), other = one;
  CHECK(same_outputs(one, other));
  other.lse.back() = 1;
  CHECK_FALSE(same_outputs(one, other));
  other = one;
  other.out.front() = 1;
  CHECK_FALSE(same_outputs(one, other));

  tersekv::MemoryUsage usage, more;
  CHECK(same_bytes(usage, more));
  for (Index* part : {&more.keys, &more.values, &more.weights, &more.positions, &more.statistics,
                      &more.slack, &more.bookkeeping, &more.workspace}) {
    *part = 1;
    CHECK_FALSE(same_bytes(usage, more));
    *part = 0;
  }
}

TEST_CASE("helpers: the counting resource counts, fails on demand and notices wrong returns") {
  CountingResource resource;
  void* block = resource.allocate(100);
  void* other = resource.allocate(28);
  CHECK(resource.bytes() == 128);
  CHECK(resource.blocks() == 2);
  resource.deallocate(block, 100);
  CHECK(resource.bytes() == 28);
  CHECK(resource.peak() == 128);
  CHECK(resource.allocations() == 2);
  resource.fail_after(1);
  void* last = resource.allocate(1);
  CHECK_THROWS_AS(resource.allocate(1), std::bad_alloc);
  CHECK_THROWS_AS(resource.allocate(1), std::bad_alloc);
  resource.fail_after(CountingResource::kNever);
  resource.deallocate(last, 1);
  CHECK(resource.sound());
  int stranger = 0;
  resource.deallocate(&stranger, 1);
  CHECK_FALSE(resource.sound());
  resource.deallocate(other, 28);

  CountingResource sizes;
  void* wrong = sizes.allocate(8);
  sizes.deallocate(wrong, 9);
  CHECK_FALSE(sizes.sound());
}

TEST_CASE("helpers: refused wants the type of the exception and every word") {
  const auto good = [] { throw std::invalid_argument("tersekv: x: expected 1, got 2"); };
  CHECK(support::refused(good, {"x", "2"}));
  CHECK_FALSE(support::refused(good, {"y"}));
  CHECK_FALSE(support::refused([] {}, {}));
  CHECK_FALSE(support::refused([] { throw std::invalid_argument("tersekv: x is bad"); }, {"x"}));
  CHECK_FALSE(
      support::refused([] { throw std::runtime_error("tersekv: x: expected 1, got 2"); }, {"x"}));
}

}  // namespace
