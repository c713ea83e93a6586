// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace support {

/// What a comparator decided, and why. Use as `CHECK(close(...))`: a failure prints the reason.
struct Verdict {
  bool ok = true;
  std::string reason = "equal";
  explicit operator bool() const { return ok; }
  friend std::ostream& operator<<(std::ostream& out, const Verdict& v) { return out << v.reason; }
};

inline Verdict rejected(const std::string& reason) { return {false, reason}; }

/// Looks at the bits, because -ffast-math (the tests run with it too) assumes that neither NaN nor
/// infinity exists.
inline bool is_finite(double x) {
  constexpr std::uint64_t exponent = 0x7FF0'0000'0000'0000;
  return (std::bit_cast<std::uint64_t>(x) & exponent) != exponent;
}

/// |got - want| <= absolute + relative * |want|, both finite.
inline bool is_close(double got, double want, double relative, double absolute) {
  return is_finite(got) && is_finite(want) &&
         std::fabs(got - want) <= absolute + relative * std::fabs(want);
}

inline Verdict close(double got, double want, double relative, double absolute) {
  if (is_close(got, want, relative, absolute)) return {};
  std::ostringstream reason;
  reason.precision(17);
  reason << "got " << got << ", want " << want << ", off by " << std::fabs(got - want)
         << " with relative " << relative << " and absolute " << absolute;
  return rejected(reason.str());
}

/// Element by element; ranges of different length are never close.
template <class Got, class Want>
Verdict close_all(const Got& got, const Want& want, double relative, double absolute) {
  if (std::size(got) != std::size(want)) {
    std::ostringstream reason;
    reason << "got " << std::size(got) << " elements, want " << std::size(want);
    return rejected(reason.str());
  }
  auto wanted = std::begin(want);
  std::size_t index = 0;
  for (const auto& element : got) {
    Verdict verdict =
        close(static_cast<double>(element), static_cast<double>(*wanted), relative, absolute);
    if (!verdict) return rejected("element " + std::to_string(index) + ": " + verdict.reason);
    ++wanted;
    ++index;
  }
  return {};
}

/// Indices (positions, victims, kept sets) must be the same, in the same order.
template <class Got, class Want>
Verdict same_indices(const Got& got, const Want& want) {
  std::vector<long long> left(std::begin(got), std::end(got));
  std::vector<long long> right(std::begin(want), std::end(want));
  if (left == right) return {};
  std::ostringstream reason;
  const std::size_t common = std::min(left.size(), right.size());
  const auto at = static_cast<std::size_t>(
      std::mismatch(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(common), right.begin())
          .first -
      left.begin());
  if (left.size() != right.size())
    reason << "got " << left.size() << " indices, want " << right.size() << "; ";
  if (at < common) reason << "index " << at << ": got " << left[at] << ", want " << right[at];
  std::vector<long long> extra, missing;
  std::sort(left.begin(), left.end());
  std::sort(right.begin(), right.end());
  std::set_difference(left.begin(), left.end(), right.begin(), right.end(),
                      std::back_inserter(extra));
  std::set_difference(right.begin(), right.end(), left.begin(), left.end(),
                      std::back_inserter(missing));
  for (long long index : extra) reason << "; unexpected " << index;
  for (long long index : missing) reason << "; missing " << index;
  return rejected(reason.str());
}

/// How far a fast path lies from an oracle. Errors are measured against `unit`, the size that
/// rounding acts on (1 for absolute errors).
class ErrorStatistics {
 public:
  void add(double got, double want, double unit = 1) {
    ++count_;
    const double error = std::fabs(got - want) / unit;
    if (!is_finite(got) || !is_finite(want) || !is_finite(error)) {
      ++broken_;
      return;
    }
    if (error != 0) ++inexact_;
    largest_ = std::max(largest_, error);
    total_ += error;
  }

  std::size_t count() const { return count_; }
  std::size_t broken() const { return broken_; }
  double largest() const { return largest_; }
  double mean() const { return count_ == 0 ? 0 : total_ / static_cast<double>(count_); }
  /// Share of the results that differ from the oracle at all.
  double inexact_share() const {
    return count_ == 0 ? 0 : static_cast<double>(inexact_) / static_cast<double>(count_);
  }

 private:
  std::size_t count_ = 0, broken_ = 0, inexact_ = 0;
  double largest_ = 0, total_ = 0;
};

/// Both ends count: float arithmetic that never errs means that nothing was compared.
struct Band {
  double low = 0;
  double high = 0;
};

inline Verdict within(const char* what, double value, Band band) {
  if (is_finite(value) && value >= band.low && value <= band.high) return {};
  std::ostringstream reason;
  reason << what << " is " << value << ", outside [" << band.low << ", " << band.high << "]";
  return rejected(reason.str());
}

/// Mean and largest error must lie in their bands, and there must be something to judge.
inline Verdict within(const ErrorStatistics& errors, Band mean, Band largest) {
  if (errors.count() == 0) return rejected("no errors were measured");
  if (errors.broken() != 0)
    return rejected(std::to_string(errors.broken()) + " results are not finite");
  Verdict verdict = within("mean error", errors.mean(), mean);
  return verdict ? within("largest error", errors.largest(), largest) : verdict;
}

}  // namespace support
