#include "kernels/methods/reference_picks.h"

#include <algorithm>

namespace allot::kernels::methods {

void pick(std::span<const double> p, int32_t begin, int32_t end, double target, double weight,
          std::vector<double>& weights) {
  double cdf = 0;
  int32_t last_positive = begin;
  for (int32_t n = begin; n < end; ++n) {
    if (p[n] > 0) last_positive = n;
    cdf += p[n];
    if (cdf >= target) break;
  }
  weights[last_positive] += weight;  // the last key with mass where rounding leaves the CDF short of its end
}

void pick_systematic(std::span<const double> p, int32_t begin, int32_t end, int32_t samples, float u,
                     double weight, std::vector<double>& weights) {
  const double total = mass(p, begin, end);
  for (int32_t s = 0; s < samples; ++s) {
    pick(p, begin, end, stratum_target<double>(s, samples, u) * total, weight, weights);
  }
}

std::vector<int32_t> by_falling_probability(std::span<const double> p) {
  std::vector<int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[a] > p[b]; });
  return order;
}

}  // namespace allot::kernels::methods
