// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/mergers/drop.hpp"
#include "tersekv/scorers/age.hpp"
#include "tersekv/selectors/lowest_score.hpp"

namespace tersekv {

/// StreamingLLM (Xiao et al. 2024, arXiv 2309.17453): the first `sinks` tokens, which attract
/// attention whatever they say, and the latest ones up to the budget. Looks at no attention. Unlike
/// the authors' code it does not renumber positions within the cache: keys arrive rotated, and stay
/// so.
struct StreamingLLM : Policy<Age, LowestScore, Drop> {
  using Policy::Policy;
  StreamingLLM();  ///< with the defaults
};

struct StreamingLLMOptions {
  Index sinks = 4;  ///< >= 0, less than the budget
};

inline StreamingLLM make_streaming_llm(const StreamingLLMOptions& options = {}) {
  LowestScore selector;
  // The newest token is protected, so that a budget of `sinks` alone is refused.
  selector.protection = {.sinks = options.sinks, .recent = 1};
  return StreamingLLM(Age{}, selector);
}
inline StreamingLLM::StreamingLLM() : StreamingLLM(make_streaming_llm()) {}

}  // namespace tersekv
