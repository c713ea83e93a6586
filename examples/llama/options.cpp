// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

namespace llama {
namespace {

// The whole of `text` as a number, or nothing.
template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
T checked(std::string_view name, const std::string& text, T min, T max, const char* kind) {
  const std::optional<T> value = parse<T>(text);
  if (value && *value >= min && *value <= max) return *value;
  std::ostringstream message;
  message << name << " is '" << text << "', expected " << kind << " from " << min << " to " << max;
  throw UsageError(message.str());
}

}  // namespace

Options::Options(std::span<const Flag> flags, std::span<const std::string> arguments) {
  for (const Flag& flag : flags) {
    if (!flag.default_value.empty()) {
      defaults_[std::string(flag.name)] = {std::string(flag.default_value)};
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto flag = std::ranges::find(flags, std::string_view(name), &Flag::name);
    if (flag == flags.end()) {
      throw UsageError(argument.starts_with("-") ? "unknown flag '" + name + "'"
                                                 : "unexpected argument '" + argument + "'");
    }
    if (has(name) && !flag->repeatable) throw UsageError(name + " is given twice");
    std::string value;
    if (flag->value.empty()) {
      if (equals != std::string::npos) throw UsageError(name + " takes no value");
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      throw UsageError(name + " needs a value");
    }
    values_[name].push_back(std::move(value));
  }
}

const std::vector<std::string>& Options::all(std::string_view name) const {
  static const std::vector<std::string> none;
  if (const auto given = values_.find(name); given != values_.end()) return given->second;
  const auto standard = defaults_.find(name);
  return standard != defaults_.end() ? standard->second : none;
}

const std::string& Options::text(std::string_view name) const {
  const std::vector<std::string>& values = all(name);
  if (values.empty()) throw UsageError(std::string(name) + " is needed");
  return values.front();
}

std::int64_t Options::integer(std::string_view name, std::int64_t min, std::int64_t max) const {
  return whole_number(name, text(name), min, max);
}

double Options::number(std::string_view name, double min, double max) const {
  return checked(name, text(name), min, max, "a number");
}

std::string describe(std::span<const Flag> flags) {
  std::string lines;
  for (const Flag& flag : flags) {
    std::string line = "  " + std::string(flag.name) + " " + std::string(flag.value);
    line.resize(std::max<std::size_t>(line.size() + 1, 24), ' ');
    line += flag.help;
    if (!flag.default_value.empty()) line += " (" + std::string(flag.default_value) + ")";
    lines += line + "\n";
  }
  return lines;
}

std::vector<Setting> parse_settings(const std::vector<std::string>& texts) {
  std::vector<Setting> settings;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UsageError("--set is '" + text + "', expected name=value");
    }
    settings.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return settings;
}

std::int64_t whole_number(std::string_view name, const std::string& text, std::int64_t min,
                          std::int64_t max) {
  return checked(name, text, min, max, "a whole number");
}

std::vector<std::string> split_list(std::string_view name, const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text + ",");
  for (std::string part; std::getline(stream, part, ',');) {
    if (part.empty()) throw UsageError(std::string(name) + " is '" + text + "': an empty entry");
    parts.push_back(part);
  }
  return parts;
}

BudgetSpec::BudgetSpec(const std::string& text) : text_(text) {
  if (text.ends_with('%')) {
    share_ = parse<double>(text.substr(0, text.size() - 1)).value_or(0) / 100;
  } else {
    count_ = parse<Index>(text).value_or(0);
  }
  if (!(count_ > 0 || (share_ > 0 && share_ <= 1))) {
    throw UsageError("budget is '" + text +
                     "', expected entries per KV head (410) or a share of the context (10%)");
  }
}

Index BudgetSpec::entries(Index context) const {
  if (count_ > 0) return count_;
  // The subtraction keeps a share that is meant to be whole (10 % of 1000) from being rounded up.
  const double entries = std::ceil(share_ * static_cast<double>(context) - 1e-6);
  return std::max<Index>(1, static_cast<Index>(entries));
}

}  // namespace llama
