// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "caches.hpp"

namespace llama {

/// A command line that cannot be run as written.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Flag {
  std::string_view name;           ///< with its dashes
  std::string_view value;          ///< what stands for its value in the help; empty for a switch
  std::string_view default_value;  ///< empty: none
  std::string_view help;
  bool repeatable = false;
};

/// `--name value` and `--name=value`, checked against the flags of a command.
class Options {
 public:
  /// Throws UsageError for an unknown flag, one given twice, or a missing value.
  Options(std::span<const Flag> flags, std::span<const std::string> arguments);

  bool has(std::string_view name) const { return values_.contains(name); }
  /// The value given, else the flag's default. Throws UsageError where there is neither.
  const std::string& text(std::string_view name) const;
  const std::vector<std::string>& all(std::string_view name) const;
  /// The same as a number, checked to lie in [min, max]; for what has no default, test has() first.
  std::int64_t integer(std::string_view name, std::int64_t min, std::int64_t max) const;
  double number(std::string_view name, double min, double max) const;

 private:
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::map<std::string, std::vector<std::string>, std::less<>> defaults_;
};

/// The flags as lines of a help text.
std::string describe(std::span<const Flag> flags);

/// "name=value", ... Throws UsageError where there is no '='.
std::vector<Setting> parse_settings(const std::vector<std::string>& texts);

/// `text`, the value of `name` or a part of it, as a whole number in [min, max]. Throws UsageError.
std::int64_t whole_number(std::string_view name, const std::string& text, std::int64_t min,
                          std::int64_t max);

/// The parts between commas. Throws UsageError for an empty part.
std::vector<std::string> split_list(std::string_view name, const std::string& text);

/// Entries per KV head: a count ("410"), or a share of the tokens that pass through ("10%").
class BudgetSpec {
 public:
  /// Throws UsageError for anything but a positive count or a share above 0 % and up to 100 %.
  explicit BudgetSpec(const std::string& text);

  const std::string& text() const { return text_; }
  /// A share is rounded up.
  Index entries(Index context) const;

 private:
  std::string text_;
  Index count_ = 0;
  double share_ = 0;
};

}  // namespace llama
