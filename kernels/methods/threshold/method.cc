#include "kernels/methods/threshold/method.h"

#include <algorithm>

#include "kernels/methods/reference_picks.h"

namespace allot::kernels::methods {

// Keeps the `kept` largest keys with their own weight, where `kept` is the least number that makes the next
// one smaller than tau = (mass not kept) / (S - kept); draws the others systematically.
void Threshold::select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                       std::vector<double>& weights) {
  const int32_t samples = choice.samples;
  const std::vector<int32_t> order = by_falling_probability(p);
  const auto positive = std::count_if(p.begin(), p.end(), [](double probability) { return probability > 0; });
  if (positive <= samples) {
    std::copy(p.begin(), p.end(), weights.begin());
    return;
  }
  std::vector<double> rest(p.begin(), p.end());
  double rest_mass = mass(rest, 0, static_cast<int32_t>(rest.size()));
  int32_t kept = 0;
  while (samples - kept > 0 && p[order[kept]] >= rest_mass / (samples - kept)) {
    weights[order[kept]] = p[order[kept]];
    rest[order[kept]] = 0;
    rest_mass = mass(rest, 0, static_cast<int32_t>(rest.size()));
    ++kept;
  }
  pick_systematic(rest, 0, static_cast<int32_t>(rest.size()), samples - kept, draw_uniform(draws, kRowDraw),
                  rest_mass / (samples - kept), weights);
}

}  // namespace allot::kernels::methods
