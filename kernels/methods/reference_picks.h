// Functions that the reference selections of several estimators share. Double precision, one key at a time.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/sampling.h"

namespace allot::kernels::methods {

inline double mass(std::span<const double> p, int32_t begin, int32_t end) {
  return std::accumulate(p.begin() + begin, p.begin() + end, 0.0);
}

// Adds `weight` to the first key of [begin, end) whose CDF, summed from `begin`, reaches `target` > 0.
void pick(std::span<const double> p, int32_t begin, int32_t end, double target, double weight,
          std::vector<double>& weights);

// Systematic sampling of keys [begin, end): `samples` of them, each of weight `weight`.
void pick_systematic(std::span<const double> p, int32_t begin, int32_t end, int32_t samples, float u,
                     double weight, std::vector<double>& weights);

// Keys from the most probable to the least; ties by number.
std::vector<int32_t> by_falling_probability(std::span<const double> p);

}  // namespace allot::kernels::methods
