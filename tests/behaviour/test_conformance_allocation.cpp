// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <new>

#include "conformance.hpp"
#include "counting_resource.hpp"

// At its budget a cache allocates nothing: neither from its resource nor from the global heap.

namespace {
std::atomic<long> global_allocations{0};

void* counted(std::size_t size) {
  ++global_allocations;
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
void* counted(std::size_t size, std::align_val_t alignment) {
  ++global_allocations;
  const auto a = static_cast<std::size_t>(alignment);
  if (void* block = std::aligned_alloc(a, (size + a - 1) / a * a)) return block;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t a) { return counted(size, a); }
void* operator new[](std::size_t size, std::align_val_t a) { return counted(size, a); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

namespace {

using namespace conformance;

TEST_CASE("allocation counter: notices what the global heap gives out") {
  const long before = global_allocations;
  std::vector<int> block(100);
  CHECK(block.size() == 100);
  CHECK(global_allocations == before + 1);
}

/// Allocations, global and from the resource, of `steps` calls of `step(i)`.
template <class Step>
Index allocations_of(const CountingResource& resource, Index steps, Step&& step) {
  const long global = global_allocations;
  const Index own = resource.allocations();
  for (Index i = 0; i < steps; ++i) step(i);
  return global_allocations - global + resource.allocations() - own;
}

constexpr Index kWarmUp = 80, kSteps = 200;

TEST_CASE("conformance: at its budget a cache decodes without an allocation") {
  FOR_EACH_POLICY(policy) {
    if (!policy.is_bounded()) continue;
    for (const Storage storage : kStorages) {
      CAPTURE(static_cast<int>(storage));
      CountingResource resource;
      support::Random random(61);
      const CacheConfig config = small_config(policy);
      Tokens tokens(random, config, kWarmUp + kSteps);
      const auto cache = policy.make(config, {.storage = storage, .resource = &resource});
      extend(*cache, tokens.chunk(0, kWarmUp - 10));
      feed(*cache, tokens, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
      CHECK(allocations_of(resource, kSteps,
                           [&](Index i) { extend(*cache, tokens.chunk(kWarmUp + i, 1)); }) == 0);
    }
  }
}

TEST_CASE("conformance: at its budget the single verbs allocate nothing") {
  FOR_EACH_POLICY(policy) {
    if (!policy.is_bounded()) continue;
    CountingResource resource;
    support::Random random(62);
    const CacheConfig config = small_config(policy);
    Tokens tokens(random, config, kWarmUp + kSteps);
    const auto cache = policy.make(config, {.resource = &resource});
    extend(*cache, tokens.chunk(0, kWarmUp));
    CHECK(allocations_of(resource, kSteps, [&](Index i) {
            const Chunk<float> one = tokens.chunk(kWarmUp + i, 1);
            cache->append(0, one);
            cache->attend(0, one.q, one.out, {.lse = one.lse});
            cache->observe(0, one.q);
            cache->compress(0);
          }) == 0);
  }
}

TEST_CASE("conformance: at its budget a prompt in equal chunks allocates nothing") {
  FOR_EACH_POLICY(policy) {
    if (!policy.is_bounded()) continue;
    CountingResource resource;
    support::Random random(63);
    const CacheConfig config = small_config(policy);
    Tokens tokens(random, config, kWarmUp + kSteps);
    const auto cache = policy.make(config, {.resource = &resource});
    for (Index i = 0; i < kWarmUp; i += 20) extend(*cache, tokens.chunk(i, 20));
    CHECK(allocations_of(resource, kSteps / 20, [&](Index i) {
            extend(*cache, tokens.chunk(kWarmUp + 20 * i, 20));
          }) == 0);
  }
}

TEST_CASE("conformance: a cleared cache fills up again without an allocation") {
  FOR_EACH_POLICY(policy) {
    CountingResource resource;
    support::Random random(64);
    const CacheConfig config = small_config(policy);
    Tokens tokens(random, config, 100);
    const auto cache = policy.make(config, {.resource = &resource});
    extend(*cache, tokens.all());
    CHECK(allocations_of(resource, 3, [&](Index) {
            cache->clear();
            extend(*cache, tokens.all());
          }) == 0);
  }
}

}  // namespace
