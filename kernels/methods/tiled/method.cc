#include "kernels/methods/tiled/method.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/methods/reference_picks.h"

namespace allot::kernels::methods {
namespace {

// Algorithm 4: floor(S W_t) samples for tile t, the rest to the largest fractions, ties to the lower tile.
std::vector<int32_t> largest_remainder(std::span<const double> tile_masses, int32_t samples) {
  std::vector<int32_t> budgets;
  std::vector<double> fractions;
  for (const double tile_mass : tile_masses) {
    budgets.push_back(static_cast<int32_t>(std::floor(samples * tile_mass)));
    fractions.push_back(samples * tile_mass - budgets.back());
  }
  std::vector<size_t> order(tile_masses.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return fractions[a] > fractions[b]; });
  int32_t left = samples - std::accumulate(budgets.begin(), budgets.end(), 0);
  for (size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++budgets[order[i]];
  return budgets;
}

std::vector<double> tile_masses_of(std::span<const double> p, int32_t tile) {
  const auto keys = static_cast<int32_t>(p.size());
  std::vector<double> masses;
  for (int32_t first = 0; first < keys; first += tile)
    masses.push_back(mass(p, first, std::min(keys, first + tile)));
  return masses;
}

// `budget` samples of tile `t`, each of weight `weight`.
void pick_in_tile(std::span<const double> p, int32_t tile, int32_t t, int32_t budget, double weight,
                  const DrawRow& draws, std::vector<double>& weights) {
  const auto keys = static_cast<int32_t>(p.size());
  pick_systematic(p, t * tile, std::min(keys, (t + 1) * tile), budget,
                  draw_uniform(draws, static_cast<uint32_t>(t)), weight, weights);
}

}  // namespace

void Prop::select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                  std::vector<double>& weights) {
  const std::vector<int32_t> budgets = largest_remainder(tile_masses_of(p, choice.tile), choice.samples);
  for (int32_t t = 0; t < static_cast<int32_t>(budgets.size()); ++t) {
    pick_in_tile(p, choice.tile, t, budgets[t], 1.0 / choice.samples, draws, weights);
  }
}

void Flash::select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                   std::vector<double>& weights) {
  const std::vector<double> masses = tile_masses_of(p, choice.tile);
  const auto tiles = static_cast<int32_t>(masses.size());
  for (int32_t t = 0; t < tiles; ++t) {
    const int32_t budget = flash_tile_budget(choice.samples, tiles, t);
    pick_in_tile(p, choice.tile, t, budget, masses[t] / budget, draws, weights);
  }
}

}  // namespace allot::kernels::methods
