// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "tersekv/attention.hpp"
#include "tersekv/head_store.hpp"
#include "tersekv/policy.hpp"
#include "tersekv/workspace.hpp"

namespace support {

// Where the compiler may reorder or fuse operations, the same body compiled for another team rounds
// otherwise: scores that are equal by definition then differ in their last bit.
#if defined(__FAST_MATH__) || defined(__FMA__) || defined(__aarch64__)
inline constexpr bool kSameRounding = false;
#else
inline constexpr bool kSameRounding = true;
#endif

/// One KV head on pages and scratch of its own: what attention and the parts of a policy work on,
/// without a cache around it.
template <class PolicyType, class KeyCodec = float, class ValueCodec = KeyCodec>
class BareHead {
 public:
  using Index = tersekv::Index;

  BareHead(const PolicyType& policy, const tersekv::Shape& shape, Index budget, Index capacity,
           Index page_size = 64)
      : shape_(shape),
        statistics_(policy.statistics(shape)),
        registers_(policy.registers(shape)),
        alpha_(PolicyType::uses_weights ? policy.alpha() : 0.0f),
        store_(1,
               tersekv::PageLayout::of<KeyCodec, ValueCodec>(
                   page_size, shape.head_dim, PolicyType::uses_weights, statistics_, registers_),
               nullptr, std::pmr::get_default_resource()),
        spaces_(
            1, 0,
            tersekv::detail::WorkspaceForm::of<PolicyType, KeyCodec, ValueCodec>(page_size, shape),
            std::pmr::get_default_resource()) {
    spaces_.use(store_.pool().scratch());
    store_.reserve(0, capacity);
    store_.state(0).budget = budget;
    spaces_.reserve({capacity});
  }

  tersekv::Head<KeyCodec, ValueCodec> head() {
    return store_.head(0, shape_, space().worker.scratch);
  }

  /// Appends an entry, as a cache does before it calls `Policy::append`. Not for several lanes.
  void push(const float* key, const float* value, float weight = 1.0f) {
    tersekv::HeadState& state = store_.state(0);
    const Index slot = state.length++;
    head().write_key(slot, [&](Index j) { return key[j]; });
    head().write_value(slot, [&](Index j) { return value[j]; });
    head().set_position(slot, state.seen++);
    if constexpr (PolicyType::uses_weights) head().set_weight(slot, weight);
    head().clear_statistics(slot);
    state.newest = ++state.fresh;
    state.prompt = state.fresh > 1 ? state.fresh : 0;
    ++state.waiting;
  }

  /// Attention of `query` [group_size, head_dim] to the first `visible` slots. Valid until the next
  /// call, as are `row`, `lse` and `output`. Not for several lanes.
  const tersekv::Observation& attend(const float* query, Index visible, bool first = false) {
    tersekv::AttentionRequest request;
    request.query = query;
    request.visible = visible;
    request.alpha = alpha_;
    request.out = space().worker.out;
    request.lse = space().worker.lse;
    request.attention = space().head.attention;
    request.logits = space().head.raw_logits;
    tersekv::attend(head(), request, space().attention());
    row_.visible = visible;
    row_.first = first;
    row_.attention = request.attention;
    row_.logits = request.logits;
    row_.logit_stride = space().head.shared.stride;
    row_.lse = request.lse;
    row_.query = query;
    return row_;
  }
  const tersekv::Observation& row() const { return row_; }
  std::span<const float> output() const {
    return {space().worker.out, static_cast<std::size_t>(shape_.group_size * shape_.head_dim)};
  }
  std::span<const float> lse() const {
    return {space().worker.lse, static_cast<std::size_t>(shape_.group_size)};
  }

  /// Every bit of the head's state, slot by slot: two heads are the same if these are equal.
  std::vector<std::uint32_t> bits() {
    const auto head = this->head();
    const tersekv::HeadState& state = head.state();
    std::vector<std::uint32_t> all;
    for (Index number : {state.length, state.seen, state.pinned, state.fresh, state.prompt,
                         state.waiting, state.counts.evictions, state.counts.merges}) {
      all.push_back(static_cast<std::uint32_t>(number));
    }
    const auto add = [&](float x) { all.push_back(std::bit_cast<std::uint32_t>(x)); };
    for (Index r = 0; r < registers_; ++r) add(head.reg(r));
    for (Index i = 0; i < head.length(); ++i) {
      all.push_back(static_cast<std::uint32_t>(head.position(i)));
      add(head.weight(i));
      for (Index j = 0; j < head.head_dim(); ++j) add(head.key(i, j));
      for (Index j = 0; j < head.head_dim(); ++j) add(head.value(i, j));
      for (Index c = 0; c < statistics_; ++c) {
        all.push_back(static_cast<std::uint32_t>(head.int_stat(c, i)));
      }
    }
    return all;
  }

  std::vector<Index> positions() {
    std::vector<Index> result;
    for (Index i = 0; i < head().length(); ++i) result.push_back(head().position(i));
    std::sort(result.begin(), result.end());
    return result;
  }
  /// The slot of the entry at `position`, or -1.
  Index slot_at(Index position) {
    for (Index i = 0; i < head().length(); ++i) {
      if (head().position(i) == position) return i;
    }
    return -1;
  }

 private:
  tersekv::detail::Spaces space() const { return spaces_.of(0); }

  tersekv::Shape shape_;
  Index statistics_, registers_;
  float alpha_;
  tersekv::detail::HeadStore<KeyCodec, ValueCodec> store_;
  mutable tersekv::detail::Workspaces spaces_;  // to look at a buffer changes nothing
  tersekv::Observation row_;
};

}  // namespace support
