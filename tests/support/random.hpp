// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <ostream>
#include <random>
#include <stdexcept>
#include <vector>

namespace support {

/// Seeded random floats, the same with every standard library (the engine's bits are specified by
/// the standard, its distributions are not). `INFO(random)` prints the seed with a failure.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed), engine_(seed) {}

  std::uint64_t seed() const { return seed_; }

  /// Uniform in [0, 1).
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  float uniform(float low, float high) {
    return static_cast<float>(low + (static_cast<double>(high) - low) * unit());
  }

  /// Uniform in [low, high], both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    if (low > high) throw std::invalid_argument("empty range");
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(engine_() % span);
  }

  bool chance(double probability) { return unit() < probability; }

  /// Standard normal times `deviation`.
  float normal(double deviation = 1) {
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return static_cast<float>(deviation * radius * std::cos(2 * std::numbers::pi * unit()));
  }

  std::vector<float> normals(std::int64_t count, double deviation = 1) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(deviation);
    return values;
  }

  std::vector<float> uniforms(std::int64_t count, float low, float high) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = uniform(low, high);
    return values;
  }

  template <class T>
  const T& pick(const std::vector<T>& choices) {
    return choices.at(static_cast<std::size_t>(integer(0, std::ssize(choices) - 1)));
  }

  friend std::ostream& operator<<(std::ostream& out, const Random& random) {
    return out << "seed " << random.seed_;
  }

 private:
  std::uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace support
