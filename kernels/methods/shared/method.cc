#include "kernels/methods/shared/method.h"

#include <algorithm>
#include <cmath>

#include "kernels/methods/reference_picks.h"
#include "kernels/methods/threshold/method.h"

namespace allot::kernels::methods {
namespace {

// The size of every row, those of a group after those of the group before: its probability in all heads,
// times its norm where there are norms.
std::vector<double> sizes_of(const SharedRows& rows) {
  const auto keys = static_cast<size_t>(rows.keys);
  std::vector<double> sizes(static_cast<size_t>(rows.groups) * keys, 0.0);
  for (size_t i = 0; i < rows.p.size(); ++i)
    sizes[i / (keys * static_cast<size_t>(rows.heads)) * keys + i % keys] += rows.p[i];
  for (size_t row = 0; row < rows.norms.size(); ++row) sizes[row] *= rows.norms[row];
  return sizes;
}

// Gives every head p / pi of the rows that were read: those with `weighted` = size / pi above 0.
void share(const SharedRows& rows, std::span<const double> sizes, std::span<const double> weighted,
           std::vector<double>& weights) {
  const auto keys = static_cast<size_t>(rows.keys);
  for (size_t i = 0; i < rows.p.size(); ++i) {
    const size_t row = i / (keys * static_cast<size_t>(rows.heads)) * keys + i % keys;
    if (weighted[row] > 0) weights[i] = rows.p[i] * (weighted[row] / sizes[row]);
  }
}

// Choosing R rows for each group among all rows of the groups is what `threshold` does among the keys of a
// head.
void choose(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
            std::vector<double>& weights) {
  const std::vector<double> sizes = sizes_of(rows);
  const int64_t wanted = rows_of_group(choice.unit, choice.samples, rows.heads) * rows.groups;
  Choice of_rows = choice;
  of_rows.samples = static_cast<int32_t>(std::min<int64_t>(wanted, std::ssize(sizes)));
  std::vector<double> weighted(sizes.size(), 0.0);
  Threshold::select(sizes, of_rows, draws, weighted);
  share(rows, sizes, weighted, weights);
}

}  // namespace

void Joint::select_shared(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
                          std::vector<double>& weights) {
  choose(rows, choice, draws, weights);
}

void Pooled::select_shared(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
                           std::vector<double>& weights) {
  choose(rows, choice, draws, weights);
}

void Level::select_shared(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
                          std::vector<double>& weights) {
  const std::vector<double> sizes = sizes_of(rows);
  const auto keys = static_cast<int32_t>(sizes.size());
  const float u = draw_uniform(draws, kRowDraw);
  const double per_mass =
      static_cast<double>(rows_of_group(choice.unit, choice.samples, rows.heads)) / rows.heads;
  const auto targets = level_draws(mass(sizes, 0, keys) * per_mass, u);
  std::vector<double> hit(sizes.size(), 0.0);
  for (int32_t s = 0; s < targets; ++s) pick(sizes, 0, keys, level_target<double>(s, u) / per_mass, 1, hit);
  for (size_t row = 0; row < sizes.size(); ++row)
    hit[row] = hit[row] > 0 ? std::max(sizes[row], 1 / per_mass) : 0;
  share(rows, sizes, hit, weights);
}

}  // namespace allot::kernels::methods
