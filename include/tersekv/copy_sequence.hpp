// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tersekv/checks.hpp"
#include "tersekv/config.hpp"
#include "tersekv/errors.hpp"
#include "tersekv/head_store.hpp"
#include "tersekv/kv_cache.hpp"

namespace tersekv {

namespace detail {

/// Throws std::invalid_argument unless what a sequence of the one cache holds can be held by one of
/// the other.
template <class From, class To>
void check_same_form(const From& from, const To& to) {
  check_same_policy(from.policy(), to.policy());
  check_same_config(from.config(), to.config());
  const PageLayout &pages = CacheAccess::store(from).layout(),
                   &others = CacheAccess::store(to).layout();
  require_equal("statistics of the policy", pages.statistics, others.statistics);
  require_equal("registers of the policy", pages.registers, others.registers);
}

}  // namespace detail

/// Sequence `to_sequence` of `to` then holds what `from_sequence` of `from` does, instead of what
/// it held, and goes on as it would: for prompts that many share, kept in a cache of their own, and
/// to go on in a cache of more sequences. Both have the same policy, its parameters included (of a
/// policy of one's own, if it has an operator==, this is looked at), and the same config but for
/// num_sequences; executors and pools may differ. O(length * head_dim) per head. As after `clone`,
/// scratch is there for single tokens.
///
/// Throws std::invalid_argument where sequences are none or forms differ, std::bad_alloc; `to` is
/// then as it was. Not to overlap a call that changes either cache, nor one on the pool of `to`.
template <class PolicyType, StoredElement KeyCodec, StoredElement ValueCodec, class FromExecutor,
          class ToExecutor>
void copy_sequence(const KVCache<PolicyType, KeyCodec, ValueCodec, FromExecutor>& from,
                   Index from_sequence, KVCache<PolicyType, KeyCodec, ValueCodec, ToExecutor>& to,
                   Index to_sequence) {
  const Index entries = from.longest(from_sequence), heads = to.config().num_kv_heads;
  to.longest(to_sequence);  // looks whether there is such a sequence
  detail::check_same_form(from, to);
  if constexpr (std::is_same_v<FromExecutor, ToExecutor>) {
    if (&from == &to) return to.copy(from_sequence, to_sequence);
  }
  detail::CacheAccess::reserve(to, entries);
  detail::CacheAccess::store(to).copy(to_sequence * heads, detail::CacheAccess::store(from),
                                      from_sequence * heads, heads);
}

}  // namespace tersekv
