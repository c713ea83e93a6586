// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/compare.hpp"

namespace support {

// By their bits: under `-ffast-math` the library's own need not be what they say.
inline const float kNaN = std::bit_cast<float>(0x7fc00000u);
inline const float kInfinity = std::bit_cast<float>(0x7f800000u);

/// Whether `call` throws an Error (exactly) whose message says what, expected, got, and contains
/// all of `words`.
template <class Error, class Call>
Verdict refused_with(Call&& call, const std::vector<std::string>& words) {
  std::string message;
  try {
    call();
    return rejected("not refused");
  } catch (const Error& error) {
    message = error.what();
  } catch (const std::exception& error) {
    return rejected(std::string("refused with another type of exception: ") + error.what());
  }
  std::vector<std::string> all = words;
  all.insert(all.end(), {"tersekv: ", ": expected ", ", got "});
  for (const std::string& word : all) {
    if (message.find(word) == std::string::npos) {
      return rejected("'" + message + "' does not contain '" + word + "'");
    }
  }
  return {true, message};
}

template <class Call>
Verdict refused(Call&& call, const std::vector<std::string>& words) {
  return refused_with<std::invalid_argument>(call, words);
}

}  // namespace support
