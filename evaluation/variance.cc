#include "evaluation/variance.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "evaluation/head_states.h"
#include "kernels/sampling_variance.h"

namespace allot::evaluation {
namespace {

// Sums over the replicates of a head.
struct Sums {
  double sum = 0;
  double squares = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
  }
};

struct HeadVariance {
  Sums squared_error;
  Sums rows;
  double error_formula = 0;
  double rows_formula = 0;
};

// A head's estimates under the spacing of the setting.
class HeadEstimates {
 public:
  HeadEstimates(const VarianceSetting& setting, const HeadStates& states)
      : setting_(setting), states_(states) {
    double up_to = 0;
    for (const double w : states.weights()) up_to_.push_back(up_to += w);
  }

  HeadVariance measure(int64_t samples) const {
    HeadVariance result;
    for (int64_t i = 0; i < setting_.replicates; ++i) {
      const Estimate one = estimate(samples, i);
      result.squared_error.add(one.squared_error);
      result.rows.add(static_cast<double>(one.rows));
    }
    result.rows_formula = expected_rows(states_.weights(), setting_.spacing, samples);
    if (setting_.spacing == Spacing::kIndependent)
      result.error_formula = kernels::iid_variance(states_.weights(), states_.values(), samples);
    if (setting_.spacing == Spacing::kStratified)
      result.error_formula = kernels::strat_variance(states_.weights(), states_.values(), samples);
    return result;
  }

  // The largest distance of a value from exact attention's output.
  double largest_distance() const {
    const std::span<const double> exact = states_.exact();
    double largest = 0;
    for (size_t first = 0; first < states_.values().size(); first += exact.size()) {
      double distance = 0;
      for (size_t d = 0; d < exact.size(); ++d) {
        const double off = static_cast<double>(states_.values()[first + d]) - exact[d];
        distance += off * off;
      }
      largest = std::max(largest, distance);
    }
    return std::sqrt(largest);
  }
  double variance_of_one() const { return kernels::iid_variance(states_.weights(), states_.values(), 1); }

  struct Estimate {
    double squared_error = 0;
    size_t rows = 0;
  };
  Estimate estimate(int64_t samples, int64_t replicate) const {
    const DrawRow draws = states_.draws(samples, replicate);
    std::vector<int64_t> keys;
    for (int64_t s = 0; s < samples; ++s) {
      const double target = target_of(setting_.spacing, draws, s, samples) * up_to_.back();
      keys.push_back(std::lower_bound(up_to_.begin(), up_to_.end() - 1, target) - up_to_.begin());
    }
    const std::span<const double> exact = states_.exact();
    std::vector<double> mean(exact.size());
    for (const int64_t key : keys) states_.add(mean, 1 / static_cast<double>(samples), key);
    double error = 0;
    for (size_t d = 0; d < mean.size(); ++d) error += (mean[d] - exact[d]) * (mean[d] - exact[d]);
    std::ranges::sort(keys);
    const auto distinct = std::unique(keys.begin(), keys.end()) - keys.begin();
    return {.squared_error = error, .rows = static_cast<size_t>(distinct)};
  }

 private:
  const VarianceSetting& setting_;
  const HeadStates& states_;
  std::vector<double> up_to_;  // sums of the weights
};

// Mean over heads of the means over their replicates. The heads are given, so that only replicates differ by
// chance.
Measured mean_of(std::span<const HeadVariance> heads, Sums HeadVariance::*sums, int64_t replicates) {
  const auto n = static_cast<double>(replicates);
  const auto count = static_cast<double>(heads.size());
  Measured measured;
  double variance = 0;
  for (const HeadVariance& head : heads) {
    const double mean = (head.*sums).sum / n;
    measured.mean += mean / count;
    variance += std::max(0.0, (head.*sums).squares / n - mean * mean) / (n - 1);
  }
  measured.standard_error = std::sqrt(variance) / count;
  return measured;
}

}  // namespace

std::optional<double> Measured::z() const {
  if (!formula || standard_error <= 0) return {};
  return (mean - *formula) / standard_error;
}

double expected_rows(std::span<const double> weights, Spacing spacing, int64_t samples) {
  const auto count = static_cast<double>(samples);
  double rows = 0;
  if (spacing == Spacing::kStratified) {
    std::vector<double> missed(weights.size(), 1);
    kernels::for_each_stratum_mass(weights, samples, [&](int64_t, size_t key, double mass) {
      missed[key] *= std::max(0.0, 1 - mass * count);
    });
    for (const double chance : missed) rows += 1 - chance;
    return rows;
  }
  for (const double weight : weights) {
    rows += spacing == Spacing::kSystematic ? std::min(1.0, count * weight)
                                            : -std::expm1(count * std::log1p(-std::min(weight, 1.0)));
  }
  return rows;
}

VarianceSetting with_numbers_of_states(const VarianceSetting& asked) {
  VarianceSetting setting = asked;
  if (asked.states != nullptr) {
    setting.keys = asked.states->keys;
    setting.head_dim = asked.states->head_dim;
    setting.heads = asked.states->all_heads();
  }
  return setting;
}

std::vector<Variance> measure_variance(const VarianceSetting& asked,
                                       const std::function<void(int64_t heads)>& progress,
                                       const std::atomic<bool>* stop) {
  const VarianceSetting setting = with_numbers_of_states(asked);
  check(setting);
  const size_t budgets = setting.samples.size();
  std::vector<std::vector<HeadVariance>> heads(budgets);  // [budgets, heads]
  for (std::vector<HeadVariance>& of_budget : heads) of_budget.resize(static_cast<size_t>(setting.heads));
  const bool whole = for_each_head(setting, progress, stop, [&](int64_t number, const HeadStates& states) {
    const HeadEstimates head(setting, states);
    for (size_t b = 0; b < budgets && !is_set(stop); ++b)
      heads[b][static_cast<size_t>(number)] = head.measure(setting.samples[b]);
  });
  if (!whole) return {};
  std::vector<Variance> result;
  for (size_t b = 0; b < budgets; ++b) {
    Variance variance{.samples = setting.samples[b],
                      .squared_error = mean_of(heads[b], &HeadVariance::squared_error, setting.replicates),
                      .rows = mean_of(heads[b], &HeadVariance::rows, setting.replicates)};
    double error = 0, rows = 0;
    for (const HeadVariance& head : heads[b]) {
      error += head.error_formula / static_cast<double>(setting.heads);
      rows += head.rows_formula / static_cast<double>(setting.heads);
    }
    if (setting.spacing != Spacing::kSystematic) variance.squared_error.formula = error;
    variance.rows.formula = rows;
    result.push_back(variance);
  }
  return result;
}

double bernstein_bound(double variance, double largest, int64_t samples, double delta) {
  const double log = std::log(2 / delta) / static_cast<double>(samples);
  return std::sqrt(2 * variance * log) + 2 * largest * log / 3;
}

std::vector<Tail> measure_tails(const VarianceSetting& asked, std::span<const double> deltas,
                                const std::function<void(int64_t heads)>& progress,
                                const std::atomic<bool>* stop) {
  const VarianceSetting setting = with_numbers_of_states(asked);
  check(setting);
  for (const double delta : deltas) {
    if (!(delta > 0 && delta < 1))
      throw InvalidArgument(fmt::format("tails: delta is {}, expected between 0 and 1", delta));
  }
  const size_t budgets = setting.samples.size();
  const auto heads = static_cast<size_t>(setting.heads);
  std::vector<std::vector<Tail>> tails(heads);  // [heads][budgets, deltas]
  for (std::vector<Tail>& of_head : tails) of_head.resize(budgets * deltas.size());
  const bool whole = for_each_head(setting, progress, stop, [&](int64_t number, const HeadStates& states) {
    const HeadEstimates head(setting, states);
    const double variance = head.variance_of_one();
    const double largest = head.largest_distance();
    for (size_t b = 0; b < budgets && !is_set(stop); ++b) {
      std::vector<double> errors;
      for (int64_t i = 0; i < setting.replicates; ++i)
        errors.push_back(std::sqrt(head.estimate(setting.samples[b], i).squared_error));
      std::ranges::sort(errors);
      for (size_t d = 0; d < deltas.size(); ++d) {
        const double bound = bernstein_bound(variance, largest, setting.samples[b], deltas[d]);
        const auto place = static_cast<size_t>((1 - deltas[d]) * static_cast<double>(errors.size()));
        const auto beyond = errors.end() - std::ranges::upper_bound(errors, bound);
        tails[static_cast<size_t>(number)][b * deltas.size() + d] = {
            .samples = setting.samples[b],
            .delta = deltas[d],
            .bound = bound,
            .quantile = errors[std::min(place, errors.size() - 1)],
            .beyond = static_cast<double>(beyond) / static_cast<double>(errors.size())};
      }
    }
  });
  if (!whole) return {};
  std::vector<Tail> result = tails.front();
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].bound = result[i].quantile = result[i].beyond = 0;
    for (const std::vector<Tail>& of_head : tails) {
      result[i].bound += of_head[i].bound / static_cast<double>(heads);
      result[i].quantile += of_head[i].quantile / static_cast<double>(heads);
      result[i].beyond += of_head[i].beyond / static_cast<double>(heads);
    }
  }
  return result;
}

std::optional<double> slope(std::span<const Variance> variances) {
  const auto n = static_cast<double>(variances.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const Variance& variance : variances) {
    const double samples = std::log(static_cast<double>(variance.samples));
    const double error = std::log(variance.squared_error.formula.value_or(variance.squared_error.mean));
    x += samples;
    y += error;
    xx += samples * samples;
    xy += samples * error;
  }
  const double spread = xx - x * x / n;
  if (variances.size() < 2 || !(spread > 0)) return {};
  return (xy - x * y / n) / spread;
}

}  // namespace allot::evaluation
