#include "policy/divergence_model.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "policy/allocation.h"

namespace allot::policy {
namespace {

// Priors: how far layers' scales differ (of the log), the exponents of estimators at small budgets, how far
// batches of texts differ, and the residual before there is one.
constexpr double kScaleSpread = 1.5;
constexpr double kExponent = 1.3;
constexpr double kExponentSpread = 0.4;
constexpr double kPowerSpread = 0.35;  // of the log
constexpr double kBatchSpread = 0.3;
constexpr double kFirstResidual = 0.15;
constexpr double kLeastResidual = 0.02;
constexpr double kLeastExponent = 0.1;
constexpr double kMostExponent = 4;
constexpr double kMostLogPower = 1.5;
// Root mean square of the logs of samples over the centre's at which a measurement counts half.
constexpr double kReach = 1.0;

constexpr int kMostRounds = 12;
constexpr int kMostAttempts = 8;
constexpr double kLongestMove = 2;  // of a scale in a round
constexpr double kEnough = 1e-6;    // relative decrease of the cost that ends the fit

// Overwrites the lower triangle of `matrix` [n, n] with its Cholesky factor. False when it is not positive
// definite.
bool factorise(std::vector<double>* matrix, size_t n) {
  std::vector<double>& a = *matrix;
  for (size_t row = 0; row < n; ++row) {
    for (size_t column = 0; column <= row; ++column) {
      double sum = a[row * n + column];
      for (size_t k = 0; k < column; ++k) sum -= a[row * n + k] * a[column * n + k];
      if (row != column) {
        a[row * n + column] = sum / a[column * n + column];
      } else if (sum > 0) {
        a[row * n + row] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  return true;
}

// Overwrites `vector` [n] with the solution of the factorised system.
void solve(const std::vector<double>& factor, size_t n, std::span<double> vector) {
  for (size_t row = 0; row < n; ++row) {
    for (size_t k = 0; k < row; ++k) vector[row] -= factor[row * n + k] * vector[k];
    vector[row] /= factor[row * n + row];
  }
  for (size_t row = n; row-- > 0;) {
    for (size_t k = row + 1; k < n; ++k) vector[row] -= factor[k * n + row] * vector[k];
    vector[row] /= factor[row * n + row];
  }
}

double square(double x) {
  return x * x;
}

double log_of(double samples, double unit) {
  return std::log(std::max(samples, kSamplesOfAnEmptyLayer) / unit);
}

}  // namespace

// Of the shared parameters (scales, exponents, log of the power, level), the offsets of the batches
// eliminated: each of these couples with the shared parameters alone.
struct DivergenceModel::Equations {
  size_t shared = 0;
  std::vector<double> information;  // [shared, shared], lower triangle
  std::vector<double> slope;        // [shared]
  std::vector<double> coupling;     // [batches, shared]
  std::vector<double> own;          // [batches]
  std::vector<double> own_slope;    // [batches]
};

DivergenceModel::DivergenceModel(int layers, double samples) : samples_(samples), residual_(kFirstResidual) {
  parameters_.scales.resize(static_cast<size_t>(layers));
  parameters_.exponents.resize(static_cast<size_t>(layers), kExponent);
}

void DivergenceModel::add(std::span<const Schedule> schedules, std::span<const double> divergences) {
  if (schedules.size() != divergences.size())
    throw InvalidArgument(fmt::format("{} divergences of {} schedules, expected one each", divergences.size(),
                                      schedules.size()));
  for (size_t i = 0; i < schedules.size(); ++i) {
    check_schedule(schedules[i], static_cast<int>(layers()), /*floor=*/0);
    if (!std::isfinite(divergences[i]) || !(divergences[i] > 0))
      throw InvalidArgument(fmt::format("divergence {} is {}, expected a number above 0", i, divergences[i]));
  }
  for (size_t i = 0; i < schedules.size(); ++i) {
    Point point{.logs = {}, .value = std::log(divergences[i]), .batch = parameters_.offsets.size()};
    for (const int32_t samples : schedules[i].samples) point.logs.push_back(log_of(samples, samples_));
    points_.push_back(std::move(point));
  }
  parameters_.offsets.push_back(0);
}

double DivergenceModel::expected(const Point& point, std::vector<double>* gradient) const {
  std::vector<double>& by = *gradient;
  double sum = 0;
  for (size_t layer = 0; layer < layers(); ++layer) {
    by[layer] = std::exp(parameters_.scales[layer] - parameters_.exponents[layer] * point.logs[layer]);
    sum += by[layer];
  }
  const double power = std::exp(parameters_.log_power);
  for (size_t layer = 0; layer < layers(); ++layer) {
    by[layer] *= power / sum;
    by[layers() + layer] = -by[layer] * point.logs[layer];
  }
  const double mean = sum / static_cast<double>(layers());
  by[2 * layers()] = power * std::log(mean);
  return parameters_.level + parameters_.offsets[point.batch] + power * std::log(mean);
}

std::vector<double> DivergenceModel::nearness(std::span<const double> centre) const {
  std::vector<double> near;
  for (const Point& point : points_) {
    double distance = 0;
    for (size_t layer = 0; layer < layers(); ++layer)
      distance += square(point.logs[layer] - log_of(centre[layer], samples_));
    distance /= static_cast<double>(layers()) * square(kReach);
    near.push_back(1 / (1 + square(distance)));
  }
  return near;
}

double DivergenceModel::cost(std::span<const double> nearness) const {
  std::vector<double> gradient(shaping());
  double sum = 0;
  for (size_t i = 0; i < points_.size(); ++i)
    sum += nearness[i] * square((points_[i].value - expected(points_[i], &gradient)) / residual_);
  for (const double scale : parameters_.scales) sum += square(scale / kScaleSpread);
  for (const double exponent : parameters_.exponents) sum += square((exponent - kExponent) / kExponentSpread);
  for (const double offset : parameters_.offsets) sum += square(offset / kBatchSpread);
  return sum + square(parameters_.log_power / kPowerSpread);
}

DivergenceModel::Equations DivergenceModel::equations(std::span<const double> nearness) const {
  const size_t shared = shaping() + 1, batches = parameters_.offsets.size();
  Equations made{.shared = shared,
                 .information = std::vector<double>(shared * shared),
                 .slope = std::vector<double>(shared),
                 .coupling = std::vector<double>(batches * shared),
                 .own = std::vector<double>(batches, 1 / square(kBatchSpread)),
                 .own_slope = std::vector<double>(batches)};
  for (size_t batch = 0; batch < batches; ++batch)
    made.own_slope[batch] = -parameters_.offsets[batch] / square(kBatchSpread);
  std::vector<double> gradient(shaping());
  for (size_t i = 0; i < points_.size(); ++i) {
    gradient.resize(shaping());
    const size_t batch = points_[i].batch;
    const double off = points_[i].value - expected(points_[i], &gradient);
    gradient.push_back(1);  // by the level
    const double weight = nearness[i] / square(residual_);
    for (size_t row = 0; row < shared; ++row) {
      const double weighted = weight * gradient[row];
      made.slope[row] += weighted * off;
      made.coupling[batch * shared + row] += weighted;
      for (size_t column = 0; column <= row; ++column)
        made.information[row * shared + column] += weighted * gradient[column];
    }
    made.own[batch] += weight;
    made.own_slope[batch] += weight * off;
  }
  const auto hold = [&](size_t row, double off, double spread) {
    made.information[row * shared + row] += 1 / square(spread);
    made.slope[row] -= off / square(spread);
  };
  for (size_t layer = 0; layer < layers(); ++layer) {
    hold(layer, parameters_.scales[layer], kScaleSpread);
    hold(layers() + layer, parameters_.exponents[layer] - kExponent, kExponentSpread);
  }
  hold(2 * layers(), parameters_.log_power, kPowerSpread);
  for (size_t batch = 0; batch < batches; ++batch) {
    const double* const coupling = &made.coupling[batch * shared];
    for (size_t row = 0; row < shared; ++row) {
      const double share = coupling[row] / made.own[batch];
      made.slope[row] -= share * made.own_slope[batch];
      for (size_t column = 0; column <= row; ++column)
        made.information[row * shared + column] -= share * coupling[column];
    }
  }
  return made;
}

void DivergenceModel::move(const Equations& equations, std::span<const double> step) {
  for (size_t layer = 0; layer < layers(); ++layer) {
    parameters_.scales[layer] += std::clamp(step[layer], -kLongestMove, kLongestMove);
    double& exponent = parameters_.exponents[layer];
    exponent = std::clamp(exponent + step[layers() + layer], kLeastExponent, kMostExponent);
  }
  parameters_.log_power =
      std::clamp(parameters_.log_power + step[2 * layers()], -kMostLogPower, kMostLogPower);
  parameters_.level += step[shaping()];
  for (size_t batch = 0; batch < parameters_.offsets.size(); ++batch) {
    double slope = equations.own_slope[batch];
    for (size_t k = 0; k < equations.shared; ++k)
      slope -= equations.coupling[batch * equations.shared + k] * step[k];
    parameters_.offsets[batch] += slope / equations.own[batch];
  }
}

void DivergenceModel::fit(std::span<const double> centre) {
  const std::vector<double> near = nearness(centre);
  const double all_near = std::accumulate(near.begin(), near.end(), 0.0);
  if (covariance_.empty()) {
    for (size_t i = 0; i < points_.size(); ++i) parameters_.level += near[i] * points_[i].value / all_near;
  }

  // Levenberg and Marquardt's method.
  double damping = 1e-3;
  double now = cost(near);
  for (int round = 0; round < kMostRounds; ++round) {
    const Equations made = equations(near);
    const double before = now;
    bool better = false;
    for (int attempt = 0; attempt < kMostAttempts && !better; ++attempt, damping *= 8) {
      std::vector<double> factor = made.information;
      for (size_t k = 0; k < made.shared; ++k) factor[k * made.shared + k] *= 1 + damping;
      if (!factorise(&factor, made.shared)) continue;
      std::vector<double> step = made.slope;
      solve(factor, made.shared, step);
      const Parameters old = parameters_;
      move(made, step);
      now = cost(near);
      better = now <= before;
      if (!better) parameters_ = old;
    }
    if (!better || before - now < kEnough * before) break;
    damping = std::max(damping / 64, 1e-9);
  }

  // The residual of the next fit, and what this one leaves open.
  std::vector<double> gradient(shaping());
  double squares = 0;
  for (size_t i = 0; i < points_.size(); ++i)
    squares += near[i] * square(points_[i].value - expected(points_[i], &gradient));
  // Priors hold about half of the parameters.
  const double freedom = std::max(all_near - static_cast<double>(layers()), 0.25 * all_near);
  residual_ = std::max(kLeastResidual, std::sqrt(squares / freedom));
  const Equations made = equations(near);
  std::vector<double> factor = made.information;
  const size_t size = shaping();
  covariance_.assign(size * size, 0);
  if (!factorise(&factor, made.shared)) return;
  for (size_t column = 0; column < size; ++column) {
    std::vector<double> unit(made.shared);
    unit[column] = 1;
    solve(factor, made.shared, unit);
    for (size_t row = 0; row < size; ++row) covariance_[row * size + column] = unit[row];
  }
}

double DivergenceModel::term(size_t layer, double samples) const {
  return divergence_term(parameters_.scales[layer], parameters_.exponents[layer], samples, samples_);
}

LayerCosts DivergenceModel::costs() const {
  std::vector<std::vector<double>> seen(layers());
  for (const Point& point : points_)
    for (size_t layer = 0; layer < layers(); ++layer)
      seen[layer].push_back(samples_ * std::exp(point.logs[layer]));
  return {.model = CostModel::kDivergence,
          .unit = samples_,
          .fitted = fitted_range(seen),
          .scales = parameters_.scales,
          .exponents = parameters_.exponents};
}

double DivergenceModel::log_divergence(const Schedule& schedule) const {
  double sum = 0;
  for (size_t layer = 0; layer < layers(); ++layer) sum += term(layer, schedule.samples[layer]);
  return parameters_.level + std::exp(parameters_.log_power) * std::log(sum / static_cast<double>(layers()));
}

LayerSensitivity DivergenceModel::sensitivity(const Schedule& schedule, int layer) const {
  const auto changed = static_cast<size_t>(layer);
  LayerSensitivity found{.one_fewer = -std::numeric_limits<double>::infinity()};
  Schedule other = schedule;
  ++other.samples[changed];
  const double here = log_divergence(schedule);
  found.one_more = here - log_divergence(other);
  if (schedule.samples[changed] > 0) {
    other.samples[changed] -= 2;
    found.one_fewer = here - log_divergence(other);
    ++other.samples[changed];
  }
  ++other.samples[changed];
  // The derivative of one_more by the parameters, its spread from their covariance.
  const auto gradient_of = [&](const Schedule& of) {
    Point point{.logs = {}, .value = 0, .batch = 0};
    for (const int32_t samples : of.samples) point.logs.push_back(log_of(samples, samples_));
    std::vector<double> gradient(shaping());
    (void)expected(point, &gradient);
    return gradient;
  };
  if (covariance_.empty()) return found;
  std::vector<double> gradient = gradient_of(schedule);
  other = schedule;
  ++other.samples[changed];
  const std::vector<double> after = gradient_of(other);
  for (size_t k = 0; k < gradient.size(); ++k) gradient[k] -= after[k];
  double variance = 0;
  for (size_t row = 0; row < gradient.size(); ++row)
    for (size_t column = 0; column < gradient.size(); ++column)
      variance += gradient[row] * covariance_[row * gradient.size() + column] * gradient[column];
  found.error = std::sqrt(std::max(variance, 0.0));
  return found;
}

Schedule DivergenceModel::best(int64_t total, std::span<const int32_t> least,
                               std::span<const int32_t> most) const {
  return dealt_schedule(total, least, most, [&](size_t layer, int32_t samples) {
    return term(layer, samples) - term(layer, samples + 1);
  });
}

Schedule DivergenceModel::best(int64_t total, int32_t floor) const {
  const std::vector<int32_t> least(layers(), floor);
  const std::vector<int32_t> most(layers(), std::numeric_limits<int32_t>::max());
  return best(total, least, most);
}

}  // namespace allot::policy
