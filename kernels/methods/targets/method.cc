#include "kernels/methods/targets/method.h"

#include "kernels/methods/reference_picks.h"

namespace allot::kernels::methods {

void Iid::select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                 std::vector<double>& weights) {
  const auto keys = static_cast<int32_t>(p.size());
  for (int32_t s = 0; s < choice.samples; ++s) {
    const float u = draw_uniform(draws, static_cast<uint32_t>(s));
    pick(p, 0, keys, independent_target<double>(u) * mass(p, 0, keys), 1.0 / choice.samples, weights);
  }
}

void Strat::select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                   std::vector<double>& weights) {
  const auto keys = static_cast<int32_t>(p.size());
  for (int32_t s = 0; s < choice.samples; ++s) {
    const float u = draw_uniform(draws, static_cast<uint32_t>(s));
    pick(p, 0, keys, stratum_target<double>(s, choice.samples, u) * mass(p, 0, keys), 1.0 / choice.samples,
         weights);
  }
}

void Sys::select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                 std::vector<double>& weights) {
  pick_systematic(p, 0, static_cast<int32_t>(p.size()), choice.samples, draw_uniform(draws, kRowDraw),
                  1.0 / choice.samples, weights);
}

}  // namespace allot::kernels::methods
