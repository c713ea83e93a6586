// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "compare.hpp"

namespace llama {

/// The comparison as an SVG drawing: what each policy costs in perplexity and in recall (left and
/// right) against the bytes of its cache, one line per policy.
std::string draw_svg(const Comparison& comparison);

}  // namespace llama
