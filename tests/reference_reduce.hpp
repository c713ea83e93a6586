// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reference/attention.hpp"
#include "tersekv/config.hpp"

namespace support {

inline reference::GroupReduce of_reference(tersekv::GroupReduce reduce) {
  using tersekv::GroupReduce;
  if (reduce == GroupReduce::sum) return reference::GroupReduce::sum;
  return reduce == GroupReduce::mean ? reference::GroupReduce::mean : reference::GroupReduce::max;
}

}  // namespace support
