// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "../common/c_calls.hpp"
#include "api.h"
#include "cache_set_of.hpp"
#include "machine.hpp"

namespace tersekv::peers {
namespace {

using tersekv_bench::guarded;
using tersekv_bench::last_error;
using tersekv_bench::status_of;

AnySet& set_of(void* set) {
  if (set == nullptr) throw std::invalid_argument("set: null");
  return *static_cast<AnySet*>(set);
}

const std::string& names() {
  static std::string text;
  text.clear();
  for (const auto& [name, maker] : makers()) text += (text.empty() ? "" : " ") + name;
  return text;
}

}  // namespace

std::map<std::string, Maker>& makers() {
  static std::map<std::string, Maker> all;
  return all;
}

}  // namespace tersekv::peers

using namespace tersekv::peers;

extern "C" {

const char* tersekv_peers_error(void) { return last_error().c_str(); }
const char* tersekv_peers_build(void) { return __VERSION__ "; " TERSEKV_PEERS_FLAGS; }
const char* tersekv_peers_policies(void) { return names().c_str(); }
const char* tersekv_peers_elements(void) { return kElements; }

double tersekv_peers_read(int64_t bytes, int threads) {
  static SharedRead buffer;
  return guarded(-1.0, [&] { return buffer.pass(bytes, threads); });
}
double tersekv_peers_peak(int threads) {
  return guarded(-1.0, [&] { return multiply_add_rate(threads); });
}
double tersekv_peers_product(int64_t size, int threads) {
  return guarded(-1.0, [&] { return product_seconds(size, threads); });
}

void* tersekv_peers_create(const char* policy, const char* element, int threads, int64_t copies,
                           int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t budget,
                           int64_t tokens) {
  return guarded<void*>(nullptr, [&]() -> void* {
    const auto maker = makers().find(policy);
    if (maker == makers().end()) {
      throw std::invalid_argument("policy: expected one of " + names() + ", got " + policy);
    }
    if (copies < 1 || tokens < 1 || kv_heads < 1 || q_heads % kv_heads != 0) {
      throw std::invalid_argument("shape: expected copies, tokens and whole groups");
    }
    return maker->second({copies, q_heads, kv_heads, head_dim, budget, tokens, threads}, element)
        .release();
  });
}
void* tersekv_peers_clone(void* set) {
  return guarded<void*>(nullptr, [&]() -> void* { return set_of(set).clone().release(); });
}
void tersekv_peers_destroy(void* set) { delete static_cast<AnySet*>(set); }

int tersekv_peers_weigh(void* set, uint64_t seed) {
  return status_of([&] { set_of(set).weigh(seed); });
}
int64_t tersekv_peers_length(void* set, int64_t kv_head) {
  return guarded<int64_t>(-1, [&] { return set_of(set).length(kv_head); });
}
int tersekv_peers_bytes(void* set, int64_t* eight) {
  return status_of([&] {
    const tersekv::MemoryUsage usage = set_of(set).memory();
    const int64_t all[] = {usage.keys,       usage.values, usage.weights,     usage.positions,
                           usage.statistics, usage.slack,  usage.bookkeeping, usage.workspace};
    std::copy_n(all, 8, eight);
  });
}
int tersekv_peers_query(void* set, float* q) {
  return status_of([&] { set_of(set).query(q); });
}
int tersekv_peers_export(void* set, int64_t copy, int64_t kv_head, float* k, float* v,
                         float* weights) {
  return status_of([&] { set_of(set).export_to(copy, kv_head, k, v, weights); });
}
double tersekv_peers_difference(void* set, int64_t copy) {
  return guarded(-1.0, [&] { return set_of(set).difference(copy); });
}
double tersekv_peers_attend(void* set, int64_t calls, int with_rows, float* out, float* rows) {
  return guarded(-1.0, [&] { return set_of(set).attend(calls, with_rows != 0, out, rows); });
}
double tersekv_peers_keys(void* set, int64_t calls, float* products) {
  return guarded(-1.0, [&] { return set_of(set).key_products(calls, products); });
}
double tersekv_peers_prompt(void* set, int64_t queries, int64_t calls) {
  return guarded(-1.0, [&] { return set_of(set).prompt(queries, calls); });
}

double tersekv_peers_prompt_difference(void* set) {
  return guarded(-1.0, [&] { return set_of(set).prompt_difference(); });
}
int tersekv_peers_steps(void* set, int64_t calls, double* seconds) {
  return status_of([&] { set_of(set).steps(calls, seconds); });
}
int tersekv_peers_extends(void* set, int64_t calls, double* seconds) {
  return status_of([&] { set_of(set).extends(calls, seconds); });
}
int tersekv_peers_pairs(void* set, int64_t calls, double* seconds) {
  return status_of([&] { set_of(set).pairs(calls, seconds); });
}
int tersekv_peers_stream(void* set, int64_t calls, double* seconds) {
  return status_of([&] { set_of(set).stream(calls, seconds); });
}

}  // extern "C"
