// Quantiles of a sample.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace allot {

// The value that a share `share` (0 to 1) of the values do not exceed, linear between the two nearest ones
// when sorted (the default of numpy.quantile). NaN for no values. Takes linear time on average.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = values.begin() + static_cast<std::ptrdiff_t>(std::floor(place));
  std::nth_element(values.begin(), below, values.end());
  const double between = place - std::floor(place);
  if (between == 0) return *below;
  const double above = *std::min_element(below + 1, values.end());
  return *below + between * (above - *below);
}

}  // namespace allot
