#include "policy/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "policy/allocation.h"

namespace allot::policy {
namespace {

constexpr std::string_view kNames[] = {"response", "divergence", "shares"};

// Scales of the exponential curves, as multiples of the unit, and the powers of the others.
constexpr double kDecays[] = {1.7, 1.0, 0.6};
constexpr double kPowers[] = {0.5, 1.0, 2.0};
static_assert(std::size(kDecays) + std::size(kPowers) == kResponseCurves);

// An anchored layer's next sample saves less than the price of a sample by at least this share of it, and its
// last one more by at least as much, so that an exp() that differs in its last bits gives the same schedule.
constexpr double kClear = 1e-6;

double raw_response_curve(size_t number, double samples, double unit) {
  if (number < std::size(kDecays)) return std::exp(-samples / (kDecays[number] * unit));
  // Below a unit of one sample a layer without samples must still cost more than one with half of it.
  const double least = std::min(0.4, unit / 4);
  return std::pow(std::max(samples, least), -kPowers[number - std::size(kDecays)]);
}

bool samples_at(const Schedule& like, size_t layer) {
  return like.samples[layer] != kExactLayer;
}

// What one more sample than `samples` saves the layer.
double saved(const LayerCosts& costs, size_t layer, int32_t samples) {
  return costs.cost(layer, samples) - costs.cost(layer, samples + 1.0);
}

Schedule solve_shares(const LayerCosts& costs, const Schedule& like, int64_t total, int32_t floor) {
  std::vector<double> shares;
  for (size_t layer = 0; layer < costs.layers(); ++layer)
    if (samples_at(like, layer)) shares.push_back(costs.shares[layer]);
  // Layers that are exact now may have had all of it.
  if (std::ranges::all_of(shares, [](double share) { return share == 0; })) std::ranges::fill(shares, 1.0);
  const Schedule dealt = apportion(shares, total, floor);
  Schedule schedule = like;
  size_t next = 0;
  for (int32_t& samples : schedule.samples)
    if (samples != kExactLayer) samples = dealt.samples[next++];
  return schedule;
}

// The price of a sample with which the least of the logs of the layers' factors has to change: as many bounds
// from above lie below it as bounds from below lie above it.
double price(const LayerCosts& costs, const Schedule& schedule, int32_t floor) {
  std::vector<double> ends;
  size_t layers = 0;
  for (size_t layer = 0; layer < costs.layers(); ++layer) {
    if (!samples_at(schedule, layer)) continue;
    const int32_t samples = schedule.samples[layer];
    ends.push_back(std::log(saved(costs, layer, samples)));
    if (samples > floor) ends.push_back(std::log(saved(costs, layer, samples - 1)));
    ++layers;
  }
  std::ranges::sort(ends);
  return std::exp(layers < ends.size() ? (ends[layers - 1] + ends[layers]) / 2 : ends[layers - 1] + 1);
}

void scale_layer(LayerCosts* costs, size_t layer, double factor) {
  if (costs->model == CostModel::kDivergence) {
    costs->scales[layer] += std::log(factor);
    return;
  }
  for (double& weight : costs->weights[layer]) weight *= factor;
}

}  // namespace

std::string_view name(CostModel model) {
  return kNames[static_cast<size_t>(model)];
}

CostModel parse_cost_model(std::string_view text) {
  const auto found = std::ranges::find(kNames, text);
  if (found == std::end(kNames))
    throw InvalidArgument("\"" + std::string(text) +
                          "\" is no model of costs; known are response, divergence, shares");
  return static_cast<CostModel>(found - std::begin(kNames));
}

double response_curve(size_t number, double samples, double unit) {
  const double at_unit = raw_response_curve(number, unit, unit);
  return (raw_response_curve(number, samples, unit) - at_unit) /
         (raw_response_curve(number, unit / 2, unit) - at_unit);
}

double divergence_term(double scale, double exponent, double samples, double unit) {
  return std::exp(scale - exponent * std::log(std::max(samples, kSamplesOfAnEmptyLayer) / unit));
}

size_t LayerCosts::layers() const {
  return std::max({weights.size(), scales.size(), shares.size()});
}

double LayerCosts::cost(size_t layer, double samples) const {
  if (model == CostModel::kDivergence) return divergence_term(scales[layer], exponents[layer], samples, unit);
  double sum = 0;
  for (size_t number = 0; number < kResponseCurves; ++number) {
    const double weight = weights[layer][number];
    if (weight > 0) sum += weight * response_curve(number, samples, unit);
  }
  return sum;
}

Schedule solve(const LayerCosts& costs, const Schedule& like, int64_t total, int32_t floor) {
  const int64_t sampled = sampled_layers(like.samples);
  if (like.samples.size() != costs.layers() || sampled == 0)
    throw InvalidArgument("costs of " + std::to_string(costs.layers()) + " layers for the schedule " +
                          like.to_string() + "; expected one for each layer, and a layer that samples");
  if (total < sampled * floor || total > kMostSolved)
    throw InvalidArgument("a total of " + std::to_string(total) + "; expected " +
                          std::to_string(sampled * floor) + ", the floor of " + std::to_string(floor) +
                          " in each of the " + std::to_string(sampled) + " layers that sample, to " +
                          std::to_string(kMostSolved));
  if (costs.model == CostModel::kShares) return solve_shares(costs, like, total, floor);
  Schedule least = like;
  Schedule most = like;
  for (size_t layer = 0; layer < costs.layers(); ++layer) {
    if (!samples_at(like, layer)) continue;
    least.samples[layer] = floor;
    most.samples[layer] = std::numeric_limits<int32_t>::max();
  }
  return dealt_schedule(total, least.samples, most.samples,
                        [&](size_t layer, int32_t samples) { return saved(costs, layer, samples); });
}

double total_cost(const LayerCosts& costs, const Schedule& schedule) {
  double sum = 0;
  for (size_t layer = 0; layer < costs.layers(); ++layer)
    if (samples_at(schedule, layer)) sum += costs.cost(layer, schedule.samples[layer]);
  return sum;
}

LayerCosts anchored(LayerCosts costs, const Schedule& schedule, int32_t floor) {
  const int64_t total = schedule.total();
  if (costs.model != CostModel::kShares) {
    const double of_sample = price(costs, schedule, floor);
    if (!std::isfinite(std::log(of_sample))) return shares_of(schedule, floor);
    const double low = of_sample * (1 - kClear), high = of_sample * (1 + kClear);
    for (size_t layer = 0; layer < costs.layers(); ++layer) {
      if (!samples_at(schedule, layer)) continue;
      const int32_t samples = schedule.samples[layer];
      const double next = saved(costs, layer, samples);
      const double last = samples > floor ? saved(costs, layer, samples - 1) : high;
      if (!(next > 0 && last > 0)) return shares_of(schedule, floor);
      if (next > low) {
        scale_layer(&costs, layer, low / next);
      } else if (last < high) {
        scale_layer(&costs, layer, high / last);
      }
    }
  }
  return solve(costs, schedule, total, floor) == schedule ? costs : shares_of(schedule, floor);
}

LayerCosts shares_of(const Schedule& schedule, int32_t floor) {
  LayerCosts costs;
  const auto above =
      static_cast<double>(schedule.total() - sampled_layers(schedule.samples) * int64_t{floor});
  for (const int32_t samples : schedule.samples) {
    const bool counts = samples != kExactLayer;
    costs.shares.push_back(above > 0 ? (counts ? (samples - floor) / above : 0)
                                     : 1.0 / static_cast<double>(schedule.samples.size()));
  }
  return costs;
}

TotalRange fitted_range(std::span<const std::vector<double>> seen) {
  double low = 0, high = 0;
  for (std::vector<double> samples : seen) {
    std::ranges::sort(samples);
    const size_t tenth = (samples.size() - 1) / 10;
    low += samples[tenth];
    high += samples[samples.size() - 1 - tenth];
  }
  return {.low = static_cast<int64_t>(std::floor(low)), .high = static_cast<int64_t>(std::ceil(high))};
}

}  // namespace allot::policy
