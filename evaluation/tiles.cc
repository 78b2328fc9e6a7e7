#include "evaluation/tiles.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "evaluation/checked_numbers.h"
#include "evaluation/head_states.h"
#include "kernels/method.h"
#include "kernels/reference.h"
#include "kernels/sampling.h"

namespace allot::evaluation {
namespace {

using kernels::Estimator;

// 1, 2, 4, … and all `tiles`.
std::vector<int64_t> tile_counts(int64_t tiles) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count < tiles; count *= 2) counts.push_back(count);
  counts.push_back(tiles);
  return counts;
}

double norm(std::span<const double> vector) {
  return std::sqrt(std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0));
}

// The weights of a head by tiles of one size.
class Tiling {
 public:
  Tiling(std::span<const double> weights, int64_t tile) : tile_(tile) {
    for (size_t key = 0; key < weights.size(); ++key) {
      if (static_cast<int64_t>(key) % tile == 0) masses_.push_back(0);
      masses_.back() += weights[key];
    }
    std::vector<size_t> order(masses_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](size_t t) { return masses_[t]; });
    rank_.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) rank_[order[i]] = i;
  }

  const std::vector<double>& masses() const { return masses_; }
  size_t tile_of(int64_t key) const { return static_cast<size_t>(key / tile_); }
  // Sums of `amounts`, one a tile, over the 1, 2, 4, … heaviest tiles.
  std::vector<double> of_heaviest(std::span<const double> amounts) const {
    std::vector<double> by_rank(amounts.size());
    for (size_t t = 0; t < amounts.size(); ++t) by_rank[rank_[t]] = amounts[t];
    std::vector<double> sums;
    for (const int64_t count : tile_counts(static_cast<int64_t>(amounts.size())))
      sums.push_back(std::accumulate(by_rank.begin(), by_rank.begin() + count, 0.0));
    return sums;
  }

 private:
  int64_t tile_;
  std::vector<double> masses_;
  std::vector<size_t> rank_;  // of each tile by falling mass
};

struct HeadTiling {
  int64_t support = 0;
  std::vector<double> share;
};

struct HeadCloseness {
  double error = 0;
  double cosine = 0;
  std::optional<double> bias;
  double rows = 0;
  std::vector<double> share;  // of the rows, by heaviest tiles
};

// The bias of an estimator that gives every tile a share of the weights which does not depend on chance and
// is unbiased within it: what the shares of one estimate make of the tiles' own means.
double bias_of(const HeadStates& head, const Tiling& tiling,
               std::span<const kernels::reference::Selected> one) {
  std::vector<double> factor(tiling.masses().size());
  for (const kernels::reference::Selected& row : one) factor[tiling.tile_of(row.key)] += row.weight;
  std::vector<double> off(head.exact().size());
  for (size_t t = 0; t < factor.size(); ++t)
    factor[t] = tiling.masses()[t] > 0 ? factor[t] / tiling.masses()[t] - 1 : 0;
  for (size_t key = 0; key < head.weights().size(); ++key) {
    const auto number = static_cast<int64_t>(key);
    head.add(off, factor[tiling.tile_of(number)] * head.weights()[key], number);
  }
  return norm(off) / norm(head.exact());
}

using Estimates = std::vector<std::vector<kernels::reference::Selected>>;  // rows of every replicate

Estimates estimates_of(const HeadStates& head, const kernels::reference::Selection& selection,
                       int64_t replicates) {
  Estimates estimates;
  for (int64_t i = 0; i < replicates; ++i) {
    estimates.push_back(
        kernels::reference::select(head.weights(), selection, head.draws(selection.budget, i)));
  }
  return estimates;
}

HeadCloseness closeness_of(const HeadStates& head, const Tiling& tiling, const Estimates& estimates,
                           bool tiled) {
  HeadCloseness result;
  const double exact_norm = norm(head.exact());
  const auto count = static_cast<double>(estimates.size());
  result.share.resize(tile_counts(std::ssize(tiling.masses())).size());
  for (const std::vector<kernels::reference::Selected>& rows : estimates) {
    std::vector<double> estimate(head.exact().size());
    std::vector<double> in_tile(tiling.masses().size());
    for (const kernels::reference::Selected& row : rows) {
      head.add(estimate, row.weight, row.key);
      in_tile[tiling.tile_of(row.key)] += 1 / static_cast<double>(rows.size());
    }
    const double product = std::inner_product(estimate.begin(), estimate.end(), head.exact().begin(), 0.0);
    const double estimate_norm = norm(estimate);
    for (size_t d = 0; d < estimate.size(); ++d) estimate[d] -= head.exact()[d];
    result.error += norm(estimate) / exact_norm / count;
    if (estimate_norm > 0) result.cosine += product / estimate_norm / exact_norm / count;
    result.rows += static_cast<double>(rows.size()) / count;
    const std::vector<double> share = tiling.of_heaviest(in_tile);
    for (size_t k = 0; k < share.size(); ++k) result.share[k] += share[k] / count;
  }
  if (tiled) result.bias = bias_of(head, tiling, estimates.front());
  return result;
}

// Means of some of the heads; nothing of none.
std::optional<Closeness> mean_of(std::span<const HeadCloseness* const> heads) {
  if (heads.empty()) return {};
  const auto count = static_cast<double>(heads.size());
  Closeness mean{.heads = std::ssize(heads)};
  double squares = 0;
  for (const HeadCloseness* head : heads) {
    mean.error += head->error / count;
    mean.cosine += head->cosine / count;
    mean.rows += head->rows / count;
    if (head->bias) mean.bias = mean.bias.value_or(0) + *head->bias / count;
  }
  for (const HeadCloseness* head : heads) squares += (head->error - mean.error) * (head->error - mean.error);
  if (heads.size() > 1) mean.error_standard_error = std::sqrt(squares / (count - 1) / count);
  return mean;
}

TileMasses mean_masses(int64_t tile, int64_t tiles, std::span<const HeadTiling> heads) {
  TileMasses masses{.tile = tile, .tiles = tiles};
  masses.share.resize(heads.front().share.size());
  const auto count = static_cast<double>(heads.size());
  for (const HeadTiling& head : heads) {
    masses.support += static_cast<double>(head.support) / count;
    ++masses.classes[support_class(head.support)];
    for (size_t k = 0; k < masses.share.size(); ++k) masses.share[k] += head.share[k] / count;
  }
  return masses;
}

// Fills in what the heads measured of `row`, their tilings beside them.
void set_means(std::span<const HeadCloseness> heads, std::span<const HeadTiling> tilings, TileRow* row) {
  if (heads.empty()) return;
  std::vector<const HeadCloseness*> all;
  std::array<std::vector<const HeadCloseness*>, kSupportClasses.size()> by_support;
  row->share.resize(heads.front().share.size());
  for (size_t h = 0; h < heads.size(); ++h) {
    all.push_back(&heads[h]);
    by_support[support_class(tilings[h].support)].push_back(&heads[h]);
    for (size_t k = 0; k < row->share.size(); ++k)
      row->share[k] += heads[h].share[k] / static_cast<double>(heads.size());
  }
  row->all = mean_of(all);
  for (size_t c = 0; c < by_support.size(); ++c) row->by_support[c] = mean_of(by_support[c]);
}

void check_choice(std::span<const Estimator> estimators, std::span<const int64_t> tiles) {
  for (const Estimator estimator : estimators) {
    const kernels::EstimatorRow& row = kernels::row_of(estimator);
    if (!row.samples || row.scope != kernels::Scope::kHead) {
      throw InvalidArgument(fmt::format(
          "tiles: estimator {} does not choose rows for a single head; expected one that does, such as sys, "
          "prop or flash",
          row.name));
    }
  }
  for (const int64_t tile : tiles) {
    at_least_1("tiles: keys of a tile", tile);
    if (tile > kernels::kMaxBudget) {
      throw InvalidArgument(
          fmt::format("tiles: a tile of {} keys, expected at most {}", tile, kernels::kMaxBudget));
    }
  }
}

}  // namespace

size_t support_class(int64_t tiles) {
  size_t place = 0;
  for (int64_t most = 1; tiles > most && place + 1 < kSupportClasses.size(); most *= 2) ++place;
  return place;
}

int64_t tile_support(std::span<const double> masses, double share) {
  std::vector<double> falling(masses.begin(), masses.end());
  std::ranges::sort(falling, std::greater());
  const double wanted = share * std::accumulate(falling.begin(), falling.end(), 0.0) * (1 - 1e-12);
  double sum = 0;
  int64_t tiles = 0;
  while (tiles < std::ssize(falling) && sum < wanted) sum += falling[static_cast<size_t>(tiles++)];
  return tiles;
}

TileResults measure_tiles(const VarianceSetting& asked, std::span<const Estimator> estimators,
                          std::span<const int64_t> tiles, const std::function<void(int64_t heads)>& progress,
                          const std::atomic<bool>* stop) {
  const VarianceSetting setting = with_numbers_of_states(asked);
  check(setting);
  check_choice(estimators, tiles);
  const size_t budgets = setting.samples.size();
  const auto heads = static_cast<size_t>(setting.heads);
  std::vector<std::vector<HeadTiling>> tilings(tiles.size(), std::vector<HeadTiling>(heads));
  // [estimators, tiles, budgets][heads]; empty where the estimator needs more samples.
  std::vector<std::vector<HeadCloseness>> measured(estimators.size() * tiles.size() * budgets);
  TileResults result;
  const auto place = [&](size_t e, size_t t, size_t b) { return (e * tiles.size() + t) * budgets + b; };
  const auto tile_count = [&](size_t t) { return (setting.keys + tiles[t] - 1) / tiles[t]; };
  for (size_t e = 0; e < estimators.size(); ++e) {
    for (size_t t = 0; t < tiles.size(); ++t) {
      for (size_t b = 0; b < budgets; ++b) {
        if (!kernels::row_of(estimators[e]).sample_in_every_tile || setting.samples[b] >= tile_count(t))
          measured[place(e, t, b)].resize(heads);
      }
    }
  }
  const bool whole = for_each_head(setting, progress, stop, [&](int64_t number, const HeadStates& head) {
    std::vector<Tiling> of_tile;
    for (size_t t = 0; t < tiles.size(); ++t) {
      const Tiling& tiling = of_tile.emplace_back(head.weights(), tiles[t]);
      tilings[t][static_cast<size_t>(number)] = {.support = tile_support(tiling.masses(), kSupportedShare),
                                                 .share = tiling.of_heaviest(tiling.masses())};
    }
    for (size_t b = 0; b < budgets && !is_set(stop); ++b) {
      for (size_t e = 0; e < estimators.size(); ++e) {
        const bool tiled = kernels::row_of(estimators[e]).tiled;
        Estimates estimates;
        for (size_t t = 0; t < tiles.size(); ++t) {
          std::vector<HeadCloseness>& row = measured[place(e, t, b)];
          if (row.empty()) continue;
          if (tiled || estimates.empty()) {
            estimates = estimates_of(head,
                                     {.estimator = estimators[e],
                                      .budget = static_cast<int32_t>(setting.samples[b]),
                                      .tile = static_cast<int32_t>(tiles[t])},
                                     setting.replicates);
          }
          row[static_cast<size_t>(number)] = closeness_of(head, of_tile[t], estimates, tiled);
        }
      }
    }
  });
  if (!whole) return {};

  for (size_t t = 0; t < tiles.size(); ++t)
    result.masses.push_back(mean_masses(tiles[t], tile_count(t), tilings[t]));
  for (size_t e = 0; e < estimators.size(); ++e) {
    for (size_t t = 0; t < tiles.size(); ++t) {
      for (size_t b = 0; b < budgets; ++b) {
        TileRow row{.estimator = estimators[e], .tile = tiles[t], .samples = setting.samples[b]};
        set_means(measured[place(e, t, b)], tilings[t], &row);
        result.rows.push_back(std::move(row));
      }
    }
  }
  return result;
}

}  // namespace allot::evaluation
