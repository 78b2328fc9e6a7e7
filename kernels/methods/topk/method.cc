#include "kernels/methods/topk/method.h"

#include <algorithm>

#include "kernels/methods/reference_picks.h"

namespace allot::kernels::methods {

void Topk::select(std::span<const double> p, const Choice& choice, const DrawRow& /*draws*/,
                  std::vector<double>& weights) {
  std::vector<int32_t> order = by_falling_probability(p);
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(choice.samples)));
  double kept = 0;
  for (const int32_t key : order) kept += p[key];
  for (const int32_t key : order) weights[key] = p[key] / kept;
}

}  // namespace allot::kernels::methods
