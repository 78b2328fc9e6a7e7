// How certain a measured share or mean is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace allot {

// The point below which 97.5 % of the standard normal distribution lies: bounds of central 95 % intervals.
inline constexpr double kNormalQuantile975 = 1.959963984540054;

// Low and high bound of Wilson's 95 % score interval of `right` of `all` (Wilson, 1927), without continuity
// correction: good at 0 and 1 and for few observations. 0 <= right <= all; [0, 1] for none.
inline std::pair<double, double> wilson_bounds(int64_t right, int64_t all) {
  if (all == 0) return {0, 1};
  const auto n = static_cast<double>(all);
  const double p = static_cast<double>(right) / n;
  const double z2 = kNormalQuantile975 * kNormalQuantile975;
  const double center = p + z2 / (2 * n);
  const double half = kNormalQuantile975 * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  // Rounding must not push the bounds of 0 of n and n of n off 0 and 1.
  return {right == 0 ? 0 : (center - half) / (1 + z2 / n), right == all ? 1 : (center + half) / (1 + z2 / n)};
}

// Low and high bound of the 95 % interval of a mean of `count` >= 1 observations, by the normal
// approximation; `squares` is the sum of their squared distances from it. Without width for one observation.
inline std::pair<double, double> mean_bounds(double mean, double squares, int64_t count) {
  const auto n = static_cast<double>(count);
  const double half = count < 2 ? 0 : kNormalQuantile975 * std::sqrt(std::max(0.0, squares) / (n - 1) / n);
  return {mean - half, mean + half};
}

}  // namespace allot
