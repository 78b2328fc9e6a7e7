// What a run learned of layers, kept so that other totals follow from it: how much each layer suffers from
// few samples. Every curve falls and is convex, so the schedule of least cost at any total is exact and
// quick. schedule.json holds it (docs/schedule-format.md). No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/schedule.h"

namespace allot::policy {

// Where the curves come from.
enum class CostModel : uint8_t {
  kResponse,  // the learner auto: logits that a right answer loses, the mean over the draws of its posterior
  kDivergence,  // a DivergenceModel: terms of the divergence, but for a common factor
  kShares,      // no curves: shares of what is above the floors, those of the policy at every total
};
std::string_view name(CostModel model);  // "response", "divergence", "shares"
// Throws InvalidArgument naming the known ones.
CostModel parse_cost_model(std::string_view text);

// Of a layer's samples `samples` >= 0: how the terms of kResponse fall. Each is 0 at `unit` samples, and half
// as many cost 1 more.
inline constexpr size_t kResponseCurves = 6;
double response_curve(size_t number, double samples, double unit);

// What layers contribute to a divergence: exp(scale) (samples / unit) ^ -exponent, where a layer without
// samples counts as one with a quarter of a sample.
inline constexpr double kSamplesOfAnEmptyLayer = 0.25;
double divergence_term(double scale, double exponent, double samples, double unit);

// Totals from `low` to `high`.
struct TotalRange {
  int64_t low = 0;
  int64_t high = 0;
  bool holds(int64_t total) const { return low <= total && total <= high; }
  friend bool operator==(const TotalRange&, const TotalRange&) = default;
};

struct LayerCosts {
  CostModel model = CostModel::kShares;
  double unit = 0;  // samples, to which curves are scaled; > 0, of kShares 0
  // Totals at which each layer has about as many samples as it was measured with: between the sums over the
  // layers of the tenth and of the ninetieth percentile. Beyond them the curves are extrapolated. Nothing of
  // kShares.
  std::optional<TotalRange> fitted = {};
  // kResponse: layer l costs sum_k weights[l][k] response_curve(k, samples, unit). [layers][kResponseCurves],
  // each >= 0
  std::vector<std::vector<double>> weights = {};
  // kDivergence: layer l costs exp(scales[l]) (max(samples, 1/4) / unit) ^ -exponents[l]. [layers], the
  // exponents > 0
  std::vector<double> scales = {};
  std::vector<double> exponents = {};
  // kShares: [layers], each >= 0, not all 0.
  std::vector<double> shares = {};

  size_t layers() const;
  // Of curves: what `samples` samples cost the layer. Not of kShares.
  double cost(size_t layer, double samples) const;
  friend bool operator==(const LayerCosts&, const LayerCosts&) = default;
};

// The schedule of least cost among those of `total` with at least `floor` samples in each layer, where the
// layers that are exact in `like` stay exact: each sample goes to the layer that saves most by it, ties to
// the lower layer. Of kShares floor + (total - floors) * share by largest remainder. Throws InvalidArgument,
// naming the values, when `like` has another number of layers than the costs or no layer that samples, or the
// total is below the floors or above kMostSolved, which takes seconds.
inline constexpr int64_t kMostSolved = 4'000'000;
Schedule solve(const LayerCosts& costs, const Schedule& like, int64_t total, int32_t floor);

// The sum of the costs of the layers that sample. Not of kShares.
double total_cost(const LayerCosts& costs, const Schedule& schedule);

// The least change of the layers' factors, of their logs, that makes `schedule` the solution at its own
// total. A schedule that is chosen by measuring may be another one than the model's own. Where the curves
// cannot be bent so, and of kShares that give another schedule, the shares of the schedule itself.
LayerCosts anchored(LayerCosts costs, const Schedule& schedule, int32_t floor);

// Of a schedule of which nothing else is known: its samples above the floor.
LayerCosts shares_of(const Schedule& schedule, int32_t floor);

// The range for LayerCosts::fitted. `seen` lists the samples of each layer, [layers][measurements], at least
// one measurement each.
TotalRange fitted_range(std::span<const std::vector<double>> seen);

}  // namespace allot::policy
